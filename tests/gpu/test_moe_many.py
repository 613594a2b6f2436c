"""Mixtures of 5 to 16 tokens in one kernel on a GPU."""

from __future__ import annotations

from dataclasses import replace

import torch

from luce.engine.ops.moe import Router
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.random_planes import random_planes
from luce.engine.ops.triton.gated_mlp import silu_and_mul
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.ops.triton.moe_fuse import few_tokens
from luce.engine.ops.triton.moe_quant import QuantExperts
from luce.engine.ops.triton.moe_route import route
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import QUANT_FORMATS

EXPERTS, CHOSEN, HIDDEN, SIZE = 64, 6, 2048, 512


def planes(rows: int, columns: int) -> QuantPlanes:
    return random_planes(QUANT_FORMATS["Q4_K"], rows, columns, torch.device("cuda"))


def test_rows_and_graphs() -> None:
    """What the other kernels give; bits that depend on no other row, and the same in a graph."""
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(EXPERTS + 1, HIDDEN, generator=generator).cuda() * 0.02
    loads = torch.zeros(EXPERTS, dtype=torch.int64, device="cuda")
    gate = DeviceLinear(matrix.bfloat16(), None)
    router = Router(gate, EXPERTS, CHOSEN, norm_weights=True, op=route, loads=loads)
    inner, outer = planes(EXPERTS * 2 * SIZE, HIDDEN), planes(EXPERTS * HIDDEN, SIZE)
    shared = (planes(2 * SIZE, HIDDEN), planes(HIDDEN, SIZE))
    parts = [TritonQuantLinear([each], None) for each in shared]
    few = few_tokens(QuantExperts(inner, outer, EXPERTS, silu_and_mul), *parts, router)
    assert few is not None
    assert few.many is not None
    norm = NormWeight(torch.full((HIDDEN,), 1e-3, dtype=torch.bfloat16, device="cuda"), 1e-6)
    x = torch.randn(16, HIDDEN, generator=generator).cuda().bfloat16()
    found = few(x.clone(), norm, router)
    assert loads.sum() == 16 * CHOSEN
    expected = replace(few, many=None)(x.clone(), norm, router).float()
    # A router's logits are rounded otherwise: a token that is nearly a tie goes elsewhere.
    apart = (found.float() - expected).norm(dim=1) / (expected - x.float()).norm(dim=1)
    assert apart.median() < 5e-3
    for rows in (slice(0, 5), slice(4, 11), slice(1, 16)):
        assert torch.equal(few(x[rows].clone(), norm, router), found[rows])
    again = x.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        few(again, norm, router)
    for _ in range(3):
        again.copy_(x)
        graph.replay()
        assert torch.equal(again, found)
