"""Which experts a token goes to, and the order in which experts take their tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from luce.engine.ops.moe import Routing
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs

_PAIRS = 1024


@triton.jit
def _route_kernel(
    logits, experts, weights, loads, stride, num_experts,
    CHOSEN: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_CHOSEN: tl.constexpr,
):  # fmt: skip
    """Program: one token; of equals the expert of the lower number comes first."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < num_experts
    x = tl.load(logits + token * stride + index, mask=inside, other=float("-inf"))
    shares = tl.exp(x.to(tl.float32) - tl.max(x.to(tl.float32), 0))
    shares = shares / tl.sum(shares, 0)
    left = tl.where(inside, shares, -1.0)
    place = tl.arange(0, BLOCK_CHOSEN)
    picked = tl.zeros((BLOCK_CHOSEN,), tl.int64)
    kept = tl.zeros((BLOCK_CHOSEN,), tl.float32)
    for j in tl.static_range(CHOSEN):
        best = tl.max(left, 0)
        # Logits that are no numbers equal nothing: some expert that there is, then.
        expert = tl.minimum(tl.min(tl.where(left == best, index, BLOCK), 0), num_experts - 1)
        picked = tl.where(place == j, expert.to(tl.int64), picked)
        kept = tl.where(place == j, best, kept)
        left = tl.where(index == expert, -1.0, left)
        tl.atomic_add(loads + expert, 1, sem="relaxed")
    if NORM:
        kept = kept / tl.sum(kept, 0)
    there = place < CHOSEN
    tl.store(experts + token * CHOSEN + place, picked, mask=there)
    tl.store(weights + token * CHOSEN + place, kept.to(weights.dtype.element_ty), mask=there)


def route(
    logits: torch.Tensor, num_chosen: int, *, norm_weights: bool, loads: torch.Tensor
) -> Routing:
    """`ops.moe.Route` for logits [T, E] with contiguous rows."""
    tokens, num_experts = logits.shape
    experts = torch.empty(tokens, num_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(tokens, num_chosen, dtype=logits.dtype, device=logits.device)
    _route_kernel[(tokens,)](
        logits, experts, weights, loads, logits.stride(0), num_experts,
        CHOSEN=num_chosen, NORM=norm_weights, BLOCK=power_of_two(num_experts),
        BLOCK_CHOSEN=power_of_two(num_chosen), num_warps=1, **LAUNCH,
    )  # fmt: skip
    return Routing(experts, weights)


@triton.jit(do_not_specialize=["num_pairs"])
def _sort_kernel(experts, order, starts, num_pairs, BLOCK: tl.constexpr):
    """Program: one expert; its pairs follow those of all experts of lower number."""
    wait_for_inputs()
    expert = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, num_pairs, BLOCK):
        at = first + index
        taken = tl.load(experts + at, mask=at < num_pairs, other=1 << 30)
        before += (taken < expert).to(tl.int32)
    start = tl.sum(before, 0)
    tl.store(starts + expert, start)
    for first in range(0, num_pairs, BLOCK):
        at = first + index
        mine = tl.load(experts + at, mask=at < num_pairs, other=-1) == expert
        place = start + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(order + place, at, mask=mine)
        start += tl.sum(mine.to(tl.int32), 0)
    if expert == tl.num_programs(0) - 1:
        tl.store(starts + expert + 1, start)


def sort_pairs(experts: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of token and expert, token * k + choice, by expert and then by number.

    Args:
        experts: i64 [T, k].
        num_experts: E.

    Returns:
        i32 [T * k] the pairs, i32 [E + 1] where each expert's begin.
    """
    pairs = experts.numel()
    order = torch.empty(pairs, dtype=torch.int32, device=experts.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=experts.device)
    block = min(_PAIRS, power_of_two(pairs))
    _sort_kernel[(num_experts,)](experts, order, starts, pairs, BLOCK=block, num_warps=4, **LAUNCH)
    return order, starts
