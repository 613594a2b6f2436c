"""Products with whole weights, on the host: every type at odd sizes, alone and in place."""

from __future__ import annotations

import pytest
import torch

from luce.engine.device_kernel import KernelLimits
from luce.engine.ops.cuda.quant_stream import StreamTiling
from luce.engine.ops.cuda.quant_whole import (
    MOST_ROWS,
    WHOLE_TILINGS,
    _launch,
    multiply,
    refusal,
    ring_of,
)
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.testing.quant_blocks import random_blocks
from support.cuda_host import HostDevice

TYPES = sorted(set(QUANT_FORMATS) - {"Q2_K", "Q3_K"})
SMALL = StreamTiling(4, 1, 2, stages=3, is_early=True, is_together=True)
"""Of 64 rows by 16 rows of x."""
TOLERANCE = 2.7e-3
"""Results are bfloat16, which makes 1.7e-3 of it, and so are weights."""


def made(type_name: str, rows: int, columns: int) -> QuantPlanes:
    generator = torch.Generator().manual_seed(rows)
    return repack(type_name, random_blocks(type_name, rows, columns, generator), rows, columns)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def product(planes: QuantPlanes, x: torch.Tensor, tiling: StreamTiling) -> torch.Tensor:
    out = x.new_full((len(x), planes.rows), float("nan"))
    multiply(planes, x, out, None, None, tiling)
    return out


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("type_name", TYPES)
def test_products(host: HostDevice, type_name: str) -> None:
    planes, x = made(type_name, 77, 768), noise(13, 800)[:, :768]
    assert refusal(planes) is None
    wide = torch.full((13, 96), float("nan")).bfloat16()
    bias, residual = noise(77, seed=2), noise(13, 96, seed=3)
    multiply(planes, x, wide[:, 7:84], bias, residual[:, 7:84], SMALL)
    exact = x.double() @ decode(planes).double().T
    assert error(wide[:, 7:84], exact + bias.double() + residual[:, 7:84].double()) < TOLERANCE
    assert wide[:, :7].isnan().all()
    assert wide[:, 84:].isnan().all()
    found = product(planes, x, SMALL)
    assert error(found, exact) < TOLERANCE
    host.backwards = True
    assert torch.equal(product(planes, x, SMALL), found)


def test_the_tilings_that_serve(host: HostDevice) -> None:
    planes, x = made("Q4_K", 400, 512), noise(MOST_ROWS, 512)
    residual = noise(MOST_ROWS, 400, seed=3)
    exact = residual.double() + x.double() @ decode(planes).double().T
    few = residual[:17].clone()
    multiply(planes, x, residual, None, residual)
    assert error(residual, exact) < TOLERANCE
    multiply(planes, x[:17], few, None, few)
    assert torch.equal(few, residual[:17]), "the other rows do not matter"
    assert len({each.bits_key for each in WHOLE_TILINGS.values()}) == 1
    assert all(each.tokens >= most for most, each in WHOLE_TILINGS.items())


def test_a_part_of_a_pair_is_not_seen(host: HostDevice) -> None:
    """A pair's high half is multiplied with its low one behind it, 2^-16 of what it is."""
    planes, x = made("Q6_K", 16, 256), torch.eye(16, 256).bfloat16()
    found = product(planes, x, SMALL).double()
    exact = decode(planes).double()[:, :16].T
    assert ((found - exact).abs() <= exact.abs() * 2**-8 + 2**-11 * exact.abs().max()).all()


@pytest.mark.parametrize(
    ("rows", "columns", "grid"), [(24576, 4096, 128), (6144, 4096, 128), (151936, 4096, 132)]
)
def test_row_blocks_are_cut_evenly_where_that_fills_the_processor(
    rows: int, columns: int, grid: int
) -> None:
    planes = made("Q4_K", 32, 256)
    x = torch.empty(64, columns)
    wide = QuantPlanes(planes.format, rows, columns, planes.codes, None, planes.scales, None)
    assert _launch(wide, x, torch.empty(64, 1), WHOLE_TILINGS[MOST_ROWS], 132).grid == grid


def test_a_ring_with_too_few_stages_is_refused() -> None:
    limits = KernelLimits(132, 227 << 10, 228 << 10)
    for tiling in WHOLE_TILINGS.values():
        assert ring_of(QUANT_FORMATS["Q8_0"], tiling, limits).stages == tiling.stages
    with pytest.raises(ValueError, match="no room"):
        ring_of(QUANT_FORMATS["Q8_0"], StreamTiling(16, 2, 8, is_together=True), limits)
