"""Products with whole weights on a GPU: every type at odd sizes, and the same bits each time."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.cuda import quant_whole
from luce.engine.ops.cuda.quant_products import Kernel, kernel_fault
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.testing.quant_blocks import random_blocks

TYPES = sorted(set(QUANT_FORMATS) - {"Q2_K", "Q3_K"})
TOLERANCE = 2.7e-3
"""Of bfloat16 results and weights."""


def made(type_name: str, rows: int, columns: int) -> QuantPlanes:
    generator = torch.Generator(device="cuda").manual_seed(rows)
    return repack(type_name, random_blocks(type_name, rows, columns, generator), rows, columns)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("type_name", TYPES)
def test_products(type_name: str) -> None:
    assert kernel_fault(Kernel.WHOLE, QUANT_FORMATS[type_name], torch.device("cuda")) is None
    planes = made(type_name, 1333, 1280)
    for rows in (17, 33, 64):
        x, wide = noise(rows, 1280), noise(rows, 1400).fill_(float("nan"))
        bias, residual = noise(1333, seed=3), noise(rows, 1400, seed=4)
        quant_whole.multiply(planes, x, wide[:, 7:1340], bias, residual[:, 7:1340])
        expected = x.double() @ decode(planes).double().T + bias.double()
        expected += residual[:, 7:1340].double()
        assert ((wide[:, 7:1340].double() - expected).norm() / expected.norm()).item() < TOLERANCE
        assert wide[:, :7].isnan().all()
        assert wide[:, 1340:].isnan().all()


@pytest.mark.parametrize(("rows", "columns"), [(4096, 4096), (24576, 4096), (4096, 12288)])
def test_rows_are_the_same_bits_whatever_their_number(rows: int, columns: int) -> None:
    planes, x = made("Q4_K", rows, columns), noise(64, columns)
    out = x.new_full((64, rows), float("nan"))
    quant_whole.multiply(planes, x, out, None, None)
    for count in (64, 33, 20, 17):
        for _ in range(5):
            again = x.new_full((count, rows), float("nan"))
            quant_whole.multiply(planes, x[:count], again, None, None)
            assert torch.equal(again, out[:count])


def test_replayed_as_a_graph() -> None:
    parts = [made("Q4_K", 4096, 1024), made("Q6_K", 1024, 4096)] * 2

    def chained(x: torch.Tensor) -> torch.Tensor:
        for planes in parts:
            out = x.new_full((len(x), planes.rows), float("nan"))
            quant_whole.multiply(planes, x / x.norm(), out, None, None)
            x = out
        return x

    x = noise(40, 1024)
    eager = chained(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chained(x)
    for _ in range(20):
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, eager)
