"""The feed-forward blocks of a mixture's experts on a device.

Few tokens: every pair of token and expert is a product of its own, which reads the chosen experts'
weights and nothing else. More: pairs are sorted by expert, and tiles of one expert's pairs meet
its weights in matrix products. Nothing depends on values on the host, so both can be captured.

A token's result does not depend on the others beyond which of the two ways is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from luce.engine.ops.moe import Routing
from luce.engine.ops.triton.moe_route import sort_pairs
from luce.engine.ops.triton.numeric import LAUNCH, dot, power_of_two, sigmoid, wait_for_inputs

FEW_TOKENS = 8
"""Most tokens whose pairs are computed one by one."""
_BLOCK_OUT = 4
_BLOCK_IN = 1024
_COMBINE_BLOCK = 1024


@triton.jit
def gated(gate, up, dtype: tl.constexpr):
    """silu(gate) * up, rounded where separate operations round."""
    gate = gate.to(dtype).to(tl.float32)
    return (gate * sigmoid(gate)).to(dtype) * up.to(dtype)


@triton.jit
def _pair_gate_up_kernel(
    x, weight, experts, inner,
    CHOSEN: tl.constexpr, SIZE: tl.constexpr, HIDDEN: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """Program (rows of the gate, pair): silu(gate x) * up x of the pair's expert."""
    wait_for_inputs()
    pair = tl.program_id(1).to(tl.int64)
    expert = tl.load(experts + pair)
    outs = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    real = (outs < SIZE)[:, None]
    gates = weight + (expert * (2 * SIZE) + outs)[:, None] * HIDDEN
    ups = gates + SIZE * HIDDEN
    source = x + pair // CHOSEN * HIDDEN
    gate = tl.zeros((BLOCK_OUT, BLOCK_IN), tl.float32)
    up = tl.zeros((BLOCK_OUT, BLOCK_IN), tl.float32)
    for first in tl.static_range(0, HIDDEN, BLOCK_IN):
        columns = first + tl.arange(0, BLOCK_IN)[None, :]
        inside = real & (columns < HIDDEN)
        value = tl.load(source + columns, mask=columns < HIDDEN, other=0.0).to(tl.float32)
        gate += tl.load(gates + columns, mask=inside, other=0.0).to(tl.float32) * value
        up += tl.load(ups + columns, mask=inside, other=0.0).to(tl.float32) * value
    result = gated(tl.sum(gate, 1), tl.sum(up, 1), inner.dtype.element_ty)
    tl.store(inner + pair * SIZE + outs, result, mask=outs < SIZE)


@triton.jit
def _pair_down_kernel(
    inner, weight, experts, weights, out,
    CHOSEN: tl.constexpr, SIZE: tl.constexpr, HIDDEN: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """Program (rows of the result, token): the sum over the token's experts, in float32."""
    wait_for_inputs()
    token = tl.program_id(1).to(tl.int64)
    outs = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    real = (outs < HIDDEN)[:, None]
    total = tl.zeros((BLOCK_OUT,), tl.float32)
    for choice in tl.static_range(CHOSEN):
        pair = token * CHOSEN + choice
        lines = weight + (tl.load(experts + pair) * HIDDEN + outs)[:, None] * SIZE
        part = tl.zeros((BLOCK_OUT, BLOCK_IN), tl.float32)
        for first in tl.static_range(0, SIZE, BLOCK_IN):
            columns = first + tl.arange(0, BLOCK_IN)[None, :]
            value = tl.load(inner + pair * SIZE + columns, mask=columns < SIZE, other=0.0)
            w = tl.load(lines + columns, mask=real & (columns < SIZE), other=0.0)
            part += w.to(tl.float32) * value.to(tl.float32)
        total += tl.sum(part, 1) * tl.load(weights + pair).to(tl.float32)
    target = out + token * HIDDEN + outs
    tl.store(target, total.to(out.dtype.element_ty), mask=outs < HIDDEN)


@triton.jit
def tile_place(starts, tile, E: tl.constexpr, BLOCK_E: tl.constexpr, BM: tl.constexpr):
    """The expert of a tile of pairs (E: none), and its first and last sorted pair."""
    index = tl.arange(0, BLOCK_E)
    begins = tl.load(starts + index, mask=index < E, other=0)
    ends = tl.load(starts + index + 1, mask=index < E, other=0)
    tiles = (ends - begins + BM - 1) // BM
    expert = tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0)
    expert = tl.minimum(expert, E)
    inner_tile = tile - tl.sum(tl.where(index < expert, tiles, 0), 0)
    first = tl.sum(tl.where(index == expert, begins, 0), 0) + inner_tile * BM
    return expert, first, tl.sum(tl.where(index == expert, ends, 0), 0)


@triton.jit(do_not_specialize_on_alignment=["order", "starts"])
def _tile_gate_up_kernel(
    x, weight, order, starts, inner,
    E: tl.constexpr, CHOSEN: tl.constexpr, SIZE: tl.constexpr, HIDDEN: tl.constexpr,
    BLOCK_E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Program (rows of the gate, tile of one expert's pairs); results in sorted order."""
    wait_for_inputs()
    expert, first, end = tile_place(starts, tl.program_id(1), E, BLOCK_E, BM)
    if expert >= E:
        return
    places = first + tl.arange(0, BM)
    there = places < end
    tokens = (tl.load(order + places, mask=there, other=0) // CHOSEN).to(tl.int64)
    outs = tl.program_id(0) * BN + tl.arange(0, BN)
    lines = weight + (expert.to(tl.int64) * (2 * SIZE) + outs)[None, :] * HIDDEN
    gate = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    for step in range(0, HIDDEN, BK):
        columns = step + tl.arange(0, BK)
        inside = columns < HIDDEN
        source = x + tokens[:, None] * HIDDEN + columns[None, :]
        value = tl.load(source, mask=there[:, None] & inside[None, :], other=0.0)
        real = inside[:, None] & (outs < SIZE)[None, :]
        at = lines + columns[:, None]
        gate = dot(value, tl.load(at, mask=real, other=0.0), gate)
        up = dot(value, tl.load(at + SIZE * HIDDEN, mask=real, other=0.0), up)
    result = gated(gate, up, inner.dtype.element_ty)
    target = inner + places.to(tl.int64)[:, None] * SIZE + outs[None, :]
    tl.store(target, result, mask=there[:, None] & (outs < SIZE)[None, :])


@triton.jit(do_not_specialize_on_alignment=["order", "starts"])
def _tile_down_kernel(
    inner, weight, order, starts, weights, parts,
    E: tl.constexpr, SIZE: tl.constexpr, HIDDEN: tl.constexpr,
    BLOCK_E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Program (rows of the result, tile of one expert's pairs); results by pair, weighted."""
    wait_for_inputs()
    expert, first, end = tile_place(starts, tl.program_id(1), E, BLOCK_E, BM)
    if expert >= E:
        return
    places = first + tl.arange(0, BM)
    there = places < end
    outs = tl.program_id(0) * BN + tl.arange(0, BN)
    lines = weight + (expert.to(tl.int64) * HIDDEN + outs)[None, :] * SIZE
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, SIZE, BK):
        columns = step + tl.arange(0, BK)
        inside = columns < SIZE
        source = inner + places.to(tl.int64)[:, None] * SIZE + columns[None, :]
        value = tl.load(source, mask=there[:, None] & inside[None, :], other=0.0)
        real = inside[:, None] & (outs < HIDDEN)[None, :]
        total = dot(value, tl.load(lines + columns[:, None], mask=real, other=0.0), total)
    pairs = tl.load(order + places, mask=there, other=0).to(tl.int64)
    share = tl.load(weights + pairs, mask=there, other=0.0).to(tl.float32)
    target = parts + pairs[:, None] * HIDDEN + outs[None, :]
    mask = there[:, None] & (outs < HIDDEN)[None, :]
    tl.store(target, (total * share[:, None]).to(parts.dtype.element_ty), mask=mask)


@triton.jit
def _combine_kernel(parts, out, CHOSEN: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    """Program (token, columns): the sum of its pairs' results."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(CHOSEN):
        at = parts + (token * CHOSEN + choice) * HIDDEN + columns
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * HIDDEN + columns, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["gate"])
def _add_kernel(
    hidden, mixed, shared, gate, gate_stride, HIDDEN: tl.constexpr, HAS_SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (token, columns): hidden += mixed (+ sigmoid(gate) * shared)."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    at = token * HIDDEN + columns
    total = tl.load(mixed + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_SHARED:
        share = sigmoid(tl.load(gate + token * gate_stride).to(tl.float32))
        total += tl.load(shared + at, mask=inside, other=0.0).to(tl.float32) * share
    total += tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(hidden + at, total.to(hidden.dtype.element_ty), mask=inside)


def add_mixture(
    hidden: torch.Tensor,
    mixed: torch.Tensor,
    shared: torch.Tensor | None,
    gate: torch.Tensor | None,
) -> torch.Tensor:
    """`ops.moe.AddMixture` for contiguous inputs; rounded once, after the sum."""
    tokens, size = hidden.shape
    block = min(_COMBINE_BLOCK, power_of_two(size))
    _add_kernel[(tokens, triton.cdiv(size, block))](
        hidden, mixed, mixed if shared is None else shared, mixed if gate is None else gate,
        0 if gate is None else gate.stride(0), HIDDEN=size, HAS_SHARED=shared is not None,
        BLOCK=block, num_warps=4, **LAUNCH,
    )  # fmt: skip
    return hidden


@dataclass(frozen=True, slots=True)
class MoeTiling:
    """How products of many pairs are cut.

    Attributes:
        pairs: of a tile, all of one expert.
        outs: rows of a weight.
        columns: of it, read at a time.
        warps: of a program.
        stages: of its software pipeline.
    """

    pairs: int
    outs: int
    columns: int
    warps: int
    stages: int


# For as many pairs as an expert has on average: of a few tokens, a tile is mostly padding.
SMALL_TILING = MoeTiling(16, 64, 128, 4, 3)
LARGE_TILING = MoeTiling(64, 128, 64, 4, 3)


@dataclass(frozen=True, slots=True)
class DeviceExperts:
    """`ops.moe.ExpertMlp` over the weights as they are.

    Attributes:
        gate_up: [E, 2F, hidden], contiguous.
        down: [E, hidden, F], contiguous.
        small: tiling of few pairs an expert.
        large: of more.
    """

    gate_up: torch.Tensor
    down: torch.Tensor
    small: MoeTiling = SMALL_TILING
    large: MoeTiling = LARGE_TILING

    def __call__(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """[T, hidden] → [T, hidden]."""
        if len(x) <= FEW_TOKENS:
            return self._by_pair(x, routing)
        return self._by_expert(x, routing)

    def _by_pair(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        tokens, chosen = routing.experts.shape
        hidden, size = self.down.shape[1:]
        inner = x.new_empty(tokens * chosen, size)
        out = torch.empty_like(x)
        sizes = {"CHOSEN": chosen, "SIZE": size, "HIDDEN": hidden, "BLOCK_OUT": _BLOCK_OUT}
        _pair_gate_up_kernel[(triton.cdiv(size, _BLOCK_OUT), tokens * chosen)](
            x, self.gate_up, routing.experts, inner,
            **sizes, BLOCK_IN=min(_BLOCK_IN, power_of_two(hidden)), num_warps=4, **LAUNCH,
        )  # fmt: skip
        _pair_down_kernel[(triton.cdiv(hidden, _BLOCK_OUT), tokens)](
            inner, self.down, routing.experts, routing.weights, out,
            **sizes, BLOCK_IN=min(_BLOCK_IN, power_of_two(size)), num_warps=4, **LAUNCH,
        )  # fmt: skip
        return out

    def _by_expert(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        tokens, chosen = routing.experts.shape
        num_experts, hidden, size = self.down.shape
        pairs = tokens * chosen
        order, starts = sort_pairs(routing.experts, num_experts)
        tiling = self.small if pairs <= self.small.pairs * num_experts else self.large
        tiles = most_tiles(pairs, num_experts, tiling.pairs)
        sizes = {
            "E": num_experts,
            "SIZE": size,
            "HIDDEN": hidden,
            "BLOCK_E": power_of_two(num_experts),
            "BM": tiling.pairs,
            "BN": tiling.outs,
            "BK": tiling.columns,
        }
        launch = {"num_warps": tiling.warps, "num_stages": tiling.stages} | LAUNCH
        inner = x.new_empty(pairs, size)
        _tile_gate_up_kernel[(triton.cdiv(size, tiling.outs), tiles)](
            x, self.gate_up, order, starts, inner, CHOSEN=chosen, **sizes, **launch
        )
        parts = x.new_empty(pairs, hidden)
        _tile_down_kernel[(triton.cdiv(hidden, tiling.outs), tiles)](
            inner, self.down, order, starts, routing.weights, parts, **sizes, **launch
        )
        return combine(parts, chosen)

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self.gate_up.nbytes + self.down.nbytes


def most_tiles(pairs: int, num_experts: int, tile: int) -> int:
    """Tiles of one expert's pairs each, whoever the pairs go to."""
    return min(pairs, pairs // tile + num_experts)


def combine(parts: torch.Tensor, chosen: int) -> torch.Tensor:
    """Sum of each token's pairs: [T * k, hidden] → [T, hidden]."""
    pairs, hidden = parts.shape
    out = parts.new_empty(pairs // chosen, hidden)
    block = min(_COMBINE_BLOCK, power_of_two(hidden))
    _combine_kernel[(len(out), triton.cdiv(hidden, block))](
        parts, out, CHOSEN=chosen, HIDDEN=hidden, BLOCK=block, num_warps=4, **LAUNCH
    )
    return out
