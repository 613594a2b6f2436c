"""Gate and up of dozens of rows and few columns on a GPU."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.cuda import rows_in
from luce.engine.ops.cuda.rows_in_trial import by_definition, serves

DEVICE = torch.device("cuda")


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize(("size", "columns"), [(6144, 1024), (2544, 576)])
def test_gates(size: int, columns: int) -> None:
    assert serves(columns, DEVICE)
    x, weight = noise(rows_in.MOST_ROWS, columns), noise(size, columns, seed=2)
    weight *= columns**-0.5
    expected = by_definition(x, weight)
    whole = rows_in.gate(x, weight)
    assert (whole - expected).norm() / expected.norm() < 5e-3
    for rows in (5, 16, 17, 33, 63, 64, 65, 127, 128, 150, 192, 200):
        for _ in range(5):
            assert torch.equal(rows_in.gate(x[:rows], weight), whole[:rows])
