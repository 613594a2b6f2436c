"""Products of dozens of rows with matrices of few columns on a GPU."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.cuda import rows_in
from luce.engine.ops.cuda.rows_in_trial import Form, by_definition, serves

DEVICE = torch.device("cuda")


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("size", "columns", "gated"), [(4096, 1024, False), (6144, 1024, True), (2544, 576, True)]
)
def test_products(size: int, columns: int, gated: bool) -> None:
    assert serves(Form(columns, gated=gated, normed=False), DEVICE)
    x, weight = noise(rows_in.MOST_ROWS, columns), noise(size, columns, seed=2)
    weight *= columns**-0.5
    expected = by_definition(x, weight, gated=gated, eps=None)
    whole = rows_in.multiply(x, weight, gated=gated)
    assert (whole - expected).norm() / expected.norm() < 5e-3
    for rows in (5, 16, 17, 33, 63):
        for _ in range(5):
            assert torch.equal(rows_in.multiply(x[:rows], weight, gated=gated), whole[:rows])
