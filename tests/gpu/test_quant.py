"""Quantised products on a GPU: every type and class at odd sizes, unwritten memory poisoned."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

from luce.engine.ops.cuda import quant_split  # noqa: E402
from luce.engine.ops.cuda.quant_products import Kernel, QuantProducts, kernel_fault  # noqa: E402
from luce.engine.ops.cuda.quant_split import SplitTiling  # noqa: E402
from luce.engine.ops.projection import NormWeight  # noqa: E402
from luce.engine.ops.ref.quant_matmul import decode  # noqa: E402
from luce.engine.ops.triton.quant_linear import TritonQuantLinear  # noqa: E402
from luce.engine.ops.triton.quant_tilings import DEFAULT_TILINGS  # noqa: E402
from luce.engine.quant_planes import QuantPlanes, repack  # noqa: E402
from luce.loaders.quant_formats import QUANT_FORMATS  # noqa: E402
from luce.testing.quant_blocks import random_blocks  # noqa: E402

TYPES = sorted(QUANT_FORMATS)
FEW = max(DEFAULT_TILINGS.vector)
SOME = max(DEFAULT_TILINGS.tile)
# Activations and results are bfloat16; the products are not worse than that beyond a few rows.
TOLERANCE = 3.5e-3


def made(type_name: str, rows: int, columns: int, seed: int = 0) -> QuantPlanes:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    raw = random_blocks(type_name, rows, columns, generator)
    return repack(type_name, raw, rows, columns)


def noise(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda", dtype=dtype)


def error(found: torch.Tensor, x: torch.Tensor, planes: QuantPlanes) -> float:
    expected = x.double() @ decode(planes).double().T
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("rows", [1, 3, FEW + 1, 64, SOME + 1])
@pytest.mark.parametrize("type_name", TYPES)
def test_products(type_name: str, rows: int) -> None:
    columns = 5 * QUANT_FORMATS[type_name].column_multiple
    planes = made(type_name, 333, columns)
    x = noise(rows, columns)
    linear = TritonQuantLinear([planes], None)
    residual = torch.full((rows, 333), float("nan"), device="cuda", dtype=torch.bfloat16)
    found = linear(x)
    assert error(found, x, planes) < TOLERANCE
    assert linear.add_to(residual, x).isnan().all()
    added = linear.add_to(torch.zeros_like(found), x)
    torch.testing.assert_close(added, found, rtol=0, atol=0)


@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K", "Q8_0", "IQ4_XS"])
def test_vector_products_are_finer_than_bfloat16(type_name: str) -> None:
    planes = made(type_name, 512, 4096)
    x = noise(3, 4096, dtype=torch.float32)
    assert error(TritonQuantLinear([planes], None)(x), x, planes) < 1e-4


def test_few_rows_give_the_same_bits_whatever_their_number() -> None:
    planes = made("Q4_K", 640, 4096)
    linear = TritonQuantLinear([planes], None)
    x = noise(FEW, 4096)
    together = linear(x)
    for count in range(1, FEW):
        assert torch.equal(linear(x[:count]), together[:count])


@pytest.mark.parametrize("rows", [FEW + 1, 64])
def test_a_row_does_not_depend_on_the_others(rows: int) -> None:
    linear = TritonQuantLinear([made("Q5_K", 640, 4096)], None)
    x = noise(rows, 4096)
    others = torch.cat([x[:1], 50 * noise(rows - 1, 4096, seed=7)])
    assert torch.equal(linear(x)[0], linear(others)[0])


@pytest.mark.parametrize("rows", [1, FEW, 64])
def test_the_same_bits_every_time(rows: int) -> None:
    linear = TritonQuantLinear([made("Q4_K", 4096, 4096)], None)
    x = noise(rows, 4096)
    first = linear(x)
    assert all(torch.equal(linear(x), first) for _ in range(20))


@pytest.mark.parametrize("rows", [1, 16, 300])
def test_replayed_as_a_graph(rows: int) -> None:
    parts = [made("Q4_K", 512, 1024), made("Q6_K", 128, 1024, seed=5)]
    linear = TritonQuantLinear(parts, noise(640))
    x = noise(rows, 1024)
    eager = linear(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = linear(x)
    captured.fill_(float("nan"))
    graph.replay()
    assert torch.equal(captured, eager)


SPLIT = sorted(set(TYPES) - {"Q2_K", "Q3_K", "MXFP4"})


def split(planes: QuantPlanes, x: torch.Tensor, tiling: SplitTiling | None = None) -> torch.Tensor:
    out = x.new_full((len(x), planes.rows), float("nan"))
    quant_split.multiply(planes, x, out, None, None, tiling)
    return out


@pytest.mark.parametrize("type_name", SPLIT)
def test_split_products(type_name: str) -> None:
    form, device = QUANT_FORMATS[type_name], torch.device("cuda")
    assert all(kernel_fault(Kernel.SPLIT, form, device, blocks) is None for blocks in (2, 4, 8))
    planes = made(type_name, 1333, 1280)
    for rows in (1, 8, 13):
        x = noise(rows, 1280)
        wide = torch.full((rows, 1400), float("nan"), device="cuda").bfloat16()
        bias, residual = noise(1333, seed=3), noise(rows, 1400, seed=4)
        quant_split.multiply(planes, x, wide[:, 7:1340], bias, residual[:, 7:1340])
        expected = x.double() @ decode(planes).double().T + bias.double()
        expected += residual[:, 7:1340].double()
        assert ((wide[:, 7:1340].double() - expected).norm() / expected.norm()).item() < 2e-3
        assert wide[:, :7].isnan().all()
        assert wide[:, 1340:].isnan().all()


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(4096, 4096), (24576, 4096), (4096, 12288), (60000, 5120), (5120, 25600)],
)
def test_split_rows_are_the_same_bits_whatever_their_number(rows: int, columns: int) -> None:
    planes, x = made("Q4_K", rows, columns), noise(16, columns)
    together = split(planes, x)
    assert error(together, x, planes) < 2e-3
    for count in (1, 8, 9, 15):
        assert torch.equal(split(planes, x[:count]), together[:count])
    for is_early in (False, True):
        tiling = SplitTiling(2, is_early)
        assert all(torch.equal(split(planes, x, tiling), together) for _ in range(25))


@pytest.mark.parametrize("columns", [4096, 5120])
def test_split_products_of_what_a_norm_staged(columns: int) -> None:
    parts = [made("Q4_K", 512, columns), made("Q6_K", 77, columns, seed=5)]
    linear = TritonQuantLinear(parts, None, mma=QuantProducts())
    weight = noise(columns, seed=3)
    for rows in (5, 16):
        x = 30 * noise(rows, columns)
        mean = x.double().square().mean(-1, keepdim=True)
        normal = (x.double() / (mean + 1e-6).sqrt()).bfloat16() * weight
        expected = torch.cat([normal.double() @ decode(each).double().T for each in parts], 1)
        found = linear.normed(x, NormWeight(weight, 1e-6))
        assert found is not None
        assert ((found.double() - expected).norm() / expected.norm()).item() < 3e-3


def test_split_products_replayed_as_a_graph() -> None:
    parts = [made("Q4_K", 4096, 1024), made("Q6_K", 1024, 4096, seed=5)] * 2

    def chained(x: torch.Tensor) -> torch.Tensor:
        for planes in parts:
            x = split(planes, x / x.norm(), SplitTiling(2, is_early=True))
        return x

    x = noise(16, 1024)
    eager = chained(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chained(x)
    for _ in range(20):
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, eager)
