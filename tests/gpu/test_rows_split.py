"""Products of dozens of rows with small matrices on a GPU: right, and the same bits each time."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.cuda import rows_split
from luce.engine.ops.cuda.rows_products import RowsProducts

TOLERANCE = 2.5e-3
"""Of the norm: results, being bfloat16, make 1.7e-3."""
SHAPES = [(1024, 2048), (1024, 3072), (256, 512)]


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").bfloat16()


@pytest.mark.parametrize(("size", "columns"), SHAPES)
def test_a_row_depends_on_itself_alone(size: int, columns: int) -> None:
    residual, x, weight = noise(256, size), noise(256, columns, seed=2), noise(size, columns)
    expected = residual.double() + x.double() @ weight.double().T
    whole = residual.clone()
    rows_split.add_product(whole, x, weight)
    assert ((whole - expected).norm() / expected.norm()).item() < TOLERANCE
    for count in (5, 16, 17, 64, 65, 100, 128, 129, 160, 255):
        beyond = residual.clone()
        rows_split.add_product(beyond[:count], x[:count], weight)
        assert torch.equal(beyond[:count], whole[:count])
        assert torch.equal(beyond[count:], residual[count:]), "nothing else is written"


def test_replayed_as_a_graph_between_kernels_that_start_early() -> None:
    shapes = [(1024, 2048), (2048, 1024)] * 12
    weights = [noise(*shape, seed=i) / shape[1] ** 0.5 for i, shape in enumerate(shapes)]

    def chained(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            wider = x.new_zeros(len(x), len(weight))
            rows_split.add_product(wider, x, weight)
            x = wider
        return x

    x = noise(70, 2048)
    expected = chained(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chained(x)
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, expected)


def test_it_serves_here() -> None:
    x, weight = noise(33, 2048), noise(1024, 2048)
    assert RowsProducts().adds(noise(33, 1024), x, weight)
    assert not RowsProducts().adds(noise(4, 1024), x[:4], weight)
    assert not RowsProducts().adds(noise(33, 96), x, weight[:96])
