"""The streaming kernel's own text, on the host: every type at odd sizes, and its independence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from luce.engine.device_kernel import KernelLimits
from luce.engine.ops.cuda import quant_stream
from luce.engine.ops.cuda.quant_stream import (
    MOST_ROWS,
    STREAM_TILINGS,
    Ring,
    StreamTiling,
    multiply,
    refusal,
    tilings_for,
)
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.testing.quant_blocks import random_blocks
from support.cuda_host import EmulationError, HostDevice

TYPES = sorted(set(QUANT_FORMATS) - {"Q2_K", "Q3_K"})
SMALL = StreamTiling(2, 1, 2, stages=4)
"""Of 32 rows by 16 rows of x."""
TOLERANCE = 2e-3
"""Results are bfloat16, which makes 1.7e-3 of it."""


def made(type_name: str, rows: int, columns: int) -> QuantPlanes:
    generator = torch.Generator().manual_seed(rows)
    return repack(type_name, random_blocks(type_name, rows, columns, generator), rows, columns)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def product(planes: QuantPlanes, x: torch.Tensor, tiling: StreamTiling | None) -> torch.Tensor:
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
    expected = x.double() @ decode(planes).double().T + bias.double() + residual[:, 7:84].double()
    assert error(wide[:, 7:84], expected) < TOLERANCE
    assert wide[:, :7].isnan().all()
    assert wide[:, 84:].isnan().all()
    found = product(planes, x, SMALL)
    assert error(found, x.double() @ decode(planes).double().T) < TOLERANCE
    host.backwards = True
    assert torch.equal(product(planes, x, SMALL), found)


def test_adds_in_place(host: HostDevice) -> None:
    planes, x = made("Q4_K", 40, 512), noise(5, 512)
    found = product(planes, x, SMALL).float()
    residual = noise(5, 40, seed=3)
    wanted = residual.double() + x.double() @ decode(planes).double().T
    multiply(planes, x, residual, None, residual, SMALL)
    assert error(residual, wanted) < TOLERANCE
    assert not torch.equal(residual.float(), found)


def test_rows_are_the_same_bits_whatever_their_number(host: HostDevice) -> None:
    planes, x = made("Q4_K", 300, 256), noise(64, 256)
    together = product(planes, x, None)
    assert error(together, x.double() @ decode(planes).double().T) < TOLERANCE
    for count in (3, 9, 33):
        others = torch.cat([x[: count - 1], 50 * noise(1, 256, seed=count)])
        assert torch.equal(product(planes, x[:count], None), together[:count])
        assert torch.equal(product(planes, others, None)[:-1], together[: count - 1])


@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K", "Q8_0"])
def test_products_of_four_warps_together(host: HostDevice, type_name: str) -> None:
    tiling = StreamTiling(4, 2, 4, stages=4, is_together=True)
    planes, x = made(type_name, 150, 512), noise(29, 512)
    found = product(planes, x, tiling)
    assert error(found, x.double() @ decode(planes).double().T) < TOLERANCE
    host.backwards = True
    assert torch.equal(product(planes, x, tiling), found)
    small = StreamTiling(4, 2, 1, stages=4, is_together=True)
    assert torch.equal(product(planes, x[:7], small), found[:7])


@pytest.mark.parametrize(
    "tiling",
    [
        StreamTiling(4, 2, 1, token_warps=2),
        StreamTiling(4, 2, 2, stages=9),
        StreamTiling(8, 1, 2, is_early=True),
    ],
    ids=str,
)
def test_bits_depend_on_the_rows_of_a_block_alone(host: HostDevice, tiling: StreamTiling) -> None:
    planes, x = made("Q5_K", 150, 256), noise(15, 256)
    assert tiling.rows == 128
    usual = product(planes, x, StreamTiling(4, 2, 4))
    assert torch.equal(product(planes, x, tiling), usual)


def test_all_tilings_of_a_matrix_make_the_same_bits() -> None:
    assert min(STREAM_TILINGS) == 0
    for tilings in STREAM_TILINGS.values():
        assert len({each.bits_key for each in tilings.values()}) == 1
        assert all(each.tokens >= most for most, each in tilings.items())
        assert list(tilings) == sorted(tilings)
        assert max(tilings) == MOST_ROWS


def test_tilings_go_by_the_rows_of_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, wide = {MOST_ROWS: StreamTiling(8, 1, 8)}, {MOST_ROWS: StreamTiling(8, 2, 8)}
    monkeypatch.setattr(quant_stream, "STREAM_TILINGS", {0: narrow, 8192: wide})
    assert tilings_for(8191) is narrow
    assert tilings_for(8192) is wide


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("wait_for_copies<STAGES - 2 - LOOKS_AHEAD>();\n        __syncthreads();",
         "wait_for_copies<STAGES - 2 - LOOKS_AHEAD>();"),
        ("wait_for_copies<STAGES - 2 - LOOKS_AHEAD>()", "wait_for_copies<STAGES - 1>()"),
        ("matrix.copy(p, free_stage);", "matrix.copy(p, stage);"),
    ],
    ids=["no barrier", "no waiting", "stage in use"],
)  # fmt: skip
def test_what_would_be_a_race_is_seen(host: HostDevice, correct: str, wrong: str) -> None:
    planes, x = made("Q4_K", 77, 768), noise(13, 768)
    expected = x.double() @ decode(planes).double().T

    def broken(text: str) -> str:
        assert text.count(correct) == 1
        return text.replace(correct, wrong)

    host.edit = broken
    found = []
    for host.backwards in (False, True):
        try:
            found.append(error(product(planes, x, SMALL), expected))
        except EmulationError:
            found.append(float("nan"))
    assert not all(each < TOLERANCE for each in found)


def test_refuses_what_it_does_not_know() -> None:
    assert refusal(made("Q2_K", 4, 512)) == "not made for Q2_K"
    assert refusal(made("Q3_K", 4, 512)) == "not made for Q3_K"
    assert refusal(made("Q4_0", 4, 192)) == "made for columns in whole spans of 128"
    planes = made("Q4_0", 4, 256)
    assert refusal(replace(planes, rows=1 << 22)) is None
    assert refusal(replace(planes, rows=(1 << 22) + 1)) == "made for smaller matrices"


def test_the_ring_is_as_deep_as_there_is_room() -> None:
    form, tiling = QUANT_FORMATS["Q4_K"], StreamTiling(8, 2, 2, stages=99)
    limits = KernelLimits(132, 227 << 10, 228 << 10)
    stage = 256 * (64 + 8 + 4) + 16 * 256
    ring = Ring.of(form, tiling, limits)
    assert ring.stages == (227 << 10) // stage
    assert ring.stages * stage < ring.nbytes <= 227 << 10
    halved = StreamTiling(8, 2, 2, blocks=2, stages=99)
    assert Ring.of(form, halved, limits).stages == (113 << 10) // stage
    with pytest.raises(ValueError, match="no room for enough stages of Q4_K"):
        Ring.of(form, tiling, KernelLimits(132, 64 << 10, 64 << 10))
