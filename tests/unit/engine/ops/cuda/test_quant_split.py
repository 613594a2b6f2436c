"""The splitting kernel's own text, on the host: every type at odd sizes, and its independence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from luce.engine.device_kernel import KernelLimits
from luce.engine.ops.cuda import quant_split
from luce.engine.ops.cuda.quant_split import (
    MOST_ROWS,
    SPLIT_TILINGS,
    Cut,
    SplitTiling,
    multiply,
    prepared,
    refusal,
)
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import QUANT_FORMATS
from support.cuda_host import HostDevice
from support.quant_cases import error, errors_with, exact, made, noise

TYPES = sorted(set(QUANT_FORMATS) - {"Q2_K", "Q3_K", "MXFP4"})
SMALL = SplitTiling(2)
TOLERANCE = 2e-3
"""Results are bfloat16, which makes 1.7e-3 of it."""


def product(planes: QuantPlanes, x: torch.Tensor, tiling: SplitTiling | None) -> torch.Tensor:
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
    expected = exact(planes, x) + bias.double() + residual[:, 7:84].double()
    assert error(wide[:, 7:84], expected) < TOLERANCE
    assert wide[:, :7].isnan().all()
    assert wide[:, 84:].isnan().all()
    found = product(planes, x, SMALL)
    host.backwards = True
    assert torch.equal(product(planes, x, SMALL), found)


def test_adds_in_place(host: HostDevice) -> None:
    planes, x = made("Q4_K", 40, 512), noise(5, 512)
    residual = noise(5, 40, seed=3)
    wanted = residual.double() + exact(planes, x)
    multiply(planes, x, residual, None, residual, SMALL)
    assert error(residual, wanted) < TOLERANCE


@pytest.mark.parametrize("factor", [2.0**-100, 1e-3, 1e4, 2.0**100])
def test_x_may_be_of_any_size(host: HostDevice, factor: float) -> None:
    planes, x = made("Q4_K", 40, 512), noise(3, 512)
    x[1] *= factor
    x[2, 7] = 1e30
    assert error(product(planes, x, SMALL)[1], exact(planes, x[1])) < 3e-3
    assert error(product(planes, x, SMALL), exact(planes, x)) < TOLERANCE


def test_rows_are_the_same_bits_whatever_their_number(host: HostDevice) -> None:
    planes, x = made("Q4_K", 300, 1280), noise(MOST_ROWS, 1280)
    together = product(planes, x, None)
    assert error(together, exact(planes, x)) < TOLERANCE
    for count in (3, 8, 9):
        others = torch.cat([x[: count - 1], 50 * noise(1, 1280, seed=count)])
        assert torch.equal(product(planes, x[:count], None), together[:count])
        assert torch.equal(product(planes, others, None)[:-1], together[: count - 1])


def test_bits_do_not_depend_on_starting_early(host: HostDevice) -> None:
    planes, x = made("Q5_K", 300, 1280), noise(15, 1280)
    late = product(planes, x, SplitTiling(2, is_early=False))
    assert torch.equal(product(planes, x, SplitTiling(2, is_early=True)), late)


@pytest.mark.parametrize("blocks", [1, 2, 4, 8])
def test_any_number_of_blocks_and_rounds_gives_the_sums(
    host: HostDevice, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    planes, x = made("Q4_K", 300, 2048), noise(15, 2048)
    # Of eight pairs and more, sums are added up in another order of loads.
    for cut in (Cut(2, blocks, 5, 8 // blocks, 2), Cut(1, blocks, 10, 8 // blocks, 8)):
        monkeypatch.setattr(quant_split, "_cut", cache(lambda *_, cut=cut: cut))
        assert error(product(planes, x, None), exact(planes, x)) < TOLERANCE


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("                vectors.wait(x_unit);\n", ""),
        ("meet_cluster<CLUSTER>();\n", ""),
        ("unit.load(p, span, at.t);\n}", "}"),
    ],
    ids=["x not there", "no barrier before sums", "nothing new"],
)
def test_what_is_wrong_is_seen(host: HostDevice, correct: str, wrong: str) -> None:
    planes, x = made("Q4_K", 300, 1280), noise(13, 1280)
    expected, rows = exact(planes, x), prepared(x)

    def found() -> torch.Tensor:
        out = x.new_full((len(x), planes.rows), float("nan"))
        multiply(planes, rows, out, None, None)
        return out

    errors = errors_with(host, correct, wrong, found, expected)
    assert not all(each < TOLERANCE for each in errors)


def test_refuses_what_it_does_not_know(host: HostDevice) -> None:
    for type_name in ("Q2_K", "Q3_K", "MXFP4"):
        assert refusal(made(type_name, 4, 512)) == f"not made for {type_name}"
    assert refusal(made("Q4_0", 4, 192)) == "made for columns in whole blocks of 256"
    planes = made("Q4_0", 4, 256)
    assert refusal(replace(planes, rows=1 << 25)) is None
    assert refusal(replace(planes, rows=(1 << 25) + 1)) == "made for smaller matrices"
    wide = refusal(replace(planes, columns=1 << 18))
    assert wide == "there is no room for 262144 columns"


@pytest.mark.parametrize(
    ("rows", "columns", "cut"),
    [
        (6144, 4096, Cut(64, 2, 3, 8, 3)),
        (24576, 4096, Cut(64, 2, 12, 8, 12)),
        (4096, 12288, Cut(26, 4, 5, 12, 5)),
        (151936, 4096, Cut(66, 2, 72, 8, 24)),
        (5120, 17408, Cut(27, 4, 6, 17, 6)),
        (5120, 25600, Cut(14, 8, 12, 13, 12)),
        (32, 256, Cut(1, 1, 1, 1, 1)),
        (16480, 5120, Cut(65, 2, 8, 10, 8)),
        (5120, 6144, Cut(54, 2, 3, 12, 3)),
        (34816, 5120, Cut(64, 2, 17, 10, 17)),
        (248320, 5120, Cut(66, 2, 118, 10, 24)),
    ],
)
def test_the_cut_of_a_matrix(rows: int, columns: int, cut: Cut) -> None:
    limits = KernelLimits(132, 227 << 10, 228 << 10)
    assert Cut.of(rows, columns, limits) == cut
    for tiling in SPLIT_TILINGS.values():
        assert cut.nbytes(tiling.tokens) <= limits.shared_bytes


@pytest.mark.parametrize(
    ("rows", "columns", "blocks"),
    [(300, 6144, 4), (5120, 5120, 4), (300, 2048, 2), (5120, 12288, 8)],
)
def test_less_shared_memory_takes_more_blocks(rows: int, columns: int, blocks: int) -> None:
    limits = KernelLimits(170, 99 << 10, 100 << 10)
    cut = Cut.of(rows, columns, limits)
    assert cut.blocks == blocks
    assert cut.round >= min(8, cut.pairs) // 2
    assert cut.nbytes(MOST_ROWS) <= limits.shared_bytes


def test_columns_without_room_are_said_so() -> None:
    limits = KernelLimits(132, 48 << 10, 64 << 10)
    with pytest.raises(ValueError, match="there is no room for 32768 columns"):
        Cut.of(4096, 32768, limits)


def test_tilings_serve_all_numbers_of_rows() -> None:
    assert list(SPLIT_TILINGS) == sorted(SPLIT_TILINGS)
    assert all(each.tokens >= most for most, each in SPLIT_TILINGS.items())
    assert max(SPLIT_TILINGS) == MOST_ROWS
