"""Products with whole weights, on the host: every type at odd sizes, alone and in place."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from luce.engine.ops.cuda.quant_ring import RingTiling
from luce.engine.ops.cuda.quant_whole import (
    MOST_ROWS,
    WHOLE_TILINGS,
    Share,
    multiply,
    refusal,
)
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import QUANT_FORMATS
from support.cuda_host import HostDevice
from support.quant_cases import error, errors_with, exact, made, noise

TYPES = sorted(set(QUANT_FORMATS) - {"Q2_K", "Q3_K"})
SMALL = RingTiling(4, 1, 2, stages=3, is_early=True)
"""Of 64 rows by 16 rows of x."""
TOLERANCE = 2.7e-3
"""Results are bfloat16, which makes 1.7e-3 of it, and so are weights."""


def product(planes: QuantPlanes, x: torch.Tensor, tiling: RingTiling | None) -> torch.Tensor:
    out = x.new_full((len(x), planes.rows), float("nan"))
    multiply(planes, x, out, None, None, tiling)
    return out


@pytest.mark.parametrize("type_name", TYPES)
def test_products(host: HostDevice, type_name: str) -> None:
    planes, x = made(type_name, 77, 768), noise(13, 800)[:, :768]
    assert refusal(planes) is None
    wide = torch.full((13, 96), float("nan")).bfloat16()
    bias, residual = noise(77, seed=2), noise(13, 96, seed=3)
    multiply(planes, x, wide[:, 7:84], bias, residual[:, 7:84], SMALL)
    wanted = exact(planes, x)
    assert error(wide[:, 7:84], wanted + bias.double() + residual[:, 7:84].double()) < TOLERANCE
    assert wide[:, :7].isnan().all()
    assert wide[:, 84:].isnan().all()
    found = product(planes, x, SMALL)
    assert error(found, wanted) < TOLERANCE
    host.backwards = True
    assert torch.equal(product(planes, x, SMALL), found)


def test_the_tilings_that_serve(host: HostDevice) -> None:
    planes, x = made("Q4_K", 400, 512), noise(MOST_ROWS, 512)
    residual = noise(MOST_ROWS, 400, seed=3)
    wanted = residual.double() + exact(planes, x)
    few = residual[:17].clone()
    multiply(planes, x, residual, None, residual)
    assert error(residual, wanted) < TOLERANCE
    multiply(planes, x[:17], few, None, few)
    assert torch.equal(few, residual[:17]), "the other rows do not matter"
    assert len({each.bits_key for each in WHOLE_TILINGS.values()}) == 1
    assert all(each.tokens >= most for most, each in WHOLE_TILINGS.items())


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_K", "Q6_K"])
def test_each_weight(host: HostDevice, type_name: str) -> None:
    """Rounded twice; a pair's high half has its low one behind it, 2^-16 of what it is."""
    planes, x = made(type_name, 16, 256), torch.eye(16, 256).bfloat16()
    found = product(planes, x, SMALL).double()
    wanted = exact(planes, x)
    assert ((found - wanted).abs() <= wanted.abs() * 2**-7 + 2**-9 * wanted.abs().max()).all()


@pytest.mark.parametrize(
    ("rows", "columns", "grid"), [(24576, 4096, 128), (6144, 4096, 128), (151936, 4096, 132)]
)
def test_row_blocks_are_cut_evenly_where_that_fills_the_processor(
    rows: int, columns: int, grid: int
) -> None:
    assert Share.of(rows, columns, WHOLE_TILINGS[MOST_ROWS], 132).grid == grid


def test_rows_are_the_same_bits_whatever_their_number(host: HostDevice) -> None:
    planes, x = made("Q4_K", 300, 256), noise(MOST_ROWS, 256)
    together = product(planes, x, None)
    assert error(together, exact(planes, x)) < TOLERANCE
    for count in (3, 33):
        others = torch.cat([x[: count - 1], 50 * noise(1, 256, seed=count)])
        assert torch.equal(product(planes, x[:count], None), together[:count])
        assert torch.equal(product(planes, others, None)[:-1], together[: count - 1])


@pytest.mark.parametrize(
    "tiling",
    [RingTiling(4, 2, 2), RingTiling(8, 1, 4, stages=7), RingTiling(4, 2, 8, is_early=True)],
    ids=str,
)
def test_bits_depend_on_the_rows_of_a_block_alone(host: HostDevice, tiling: RingTiling) -> None:
    planes, x = made("Q5_K", 150, 512), noise(15, 512)
    assert tiling.rows == 128
    assert torch.equal(product(planes, x, tiling), product(planes, x, RingTiling(8, 1, 2)))


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("unit + 1 < end)\n                wait_for(", "unit < begin)\n                wait_for("),
        ("wait_for(full(ring), 0);", ""),
        ("wait_for(free_again(turn.stage), turn.parity);", ""),
    ],
    ids=["no waiting", "no waiting for the first", "stage in use"],
)  # fmt: skip
def test_what_would_be_a_race_is_seen(host: HostDevice, correct: str, wrong: str) -> None:
    planes, x = made("Q4_K", 77, 768), noise(13, 768)
    expected = exact(planes, x)

    found = errors_with(host, correct, wrong, lambda: product(planes, x, SMALL), expected)
    assert not all(each < TOLERANCE for each in found)


def test_refuses_what_it_does_not_know() -> None:
    assert refusal(made("Q2_K", 4, 512)) == "not made for Q2_K"
    assert refusal(made("Q3_K", 4, 512)) == "not made for Q3_K"
    assert refusal(made("Q4_0", 4, 192)) == "made for columns in whole spans of 128"
    planes = made("Q4_0", 4, 256)
    most = WHOLE_TILINGS[MOST_ROWS].rows << 14
    assert refusal(replace(planes, rows=most)) is None
    assert refusal(replace(planes, rows=most + 1)) == "made for smaller matrices"
    assert refusal(replace(planes, rows=most // 2, columns=1 << 15)) is None
    assert refusal(replace(planes, rows=most, columns=1 << 15)) == "made for smaller matrices"
