"""Products that hold x in registers, on a GPU: every type, and the same bits each time."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.cuda import quant_held
from luce.engine.ops.cuda.quant_products import held_fault
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.testing.quant_blocks import random_blocks

TYPES = sorted(set(QUANT_FORMATS) - {"Q2_K", "Q3_K", "MXFP4", "IQ4_XS"})
TOLERANCE = 2e-3
"""Of bfloat16 results, which alone make 1.7e-3."""


def made(type_name: str, rows: int, columns: int) -> QuantPlanes:
    generator = torch.Generator(device="cuda").manual_seed(rows)
    return repack(type_name, random_blocks(type_name, rows, columns, generator), rows, columns)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("type_name", TYPES)
def test_products(type_name: str) -> None:
    planes = made(type_name, 1336, 5120)
    assert quant_held.refusal(planes) is None
    cut = quant_held.cut_of(planes)
    assert held_fault(planes.format, 5120, cut, planes.codes.device) is None
    for rows in (5, 8, 13):
        x, wide = noise(rows, 5120), noise(rows, 1400).fill_(float("nan"))
        bias, residual = noise(1336, seed=3), noise(rows, 1400, seed=4)
        quant_held.multiply(planes, x, wide[:, 7:1343], bias, residual[:, 7:1343])
        expected = x.double() @ decode(planes).double().T + bias.double()
        expected += residual[:, 7:1343].double()
        assert ((wide[:, 7:1343].double() - expected).norm() / expected.norm()).item() < TOLERANCE
        assert wide[:, :7].isnan().all()
        assert wide[:, 1343:].isnan().all()


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(4096, 4096), (16480, 5120), (12352, 2048)],
)
def test_rows_are_the_same_bits_whatever_their_number(rows: int, columns: int) -> None:
    planes, x = made("Q4_K", rows, columns), noise(16, columns)
    out = x.new_full((16, rows), float("nan"))
    quant_held.multiply(planes, x, out, None, None)
    for count in (16, 15, 9, 8, 5):
        for _ in range(20):
            again = x.new_full((count, rows), float("nan"))
            quant_held.multiply(planes, x[:count], again, None, None)
            assert torch.equal(again, out[:count])
