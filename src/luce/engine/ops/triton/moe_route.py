"""Which experts a token goes to, and the order in which experts take their tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from luce.engine.ops.moe import Routing
from luce.engine.ops.triton.moe_pick import LEAST_BLOCK, by_place, is_paired, picked_experts
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs

_PAIRS = 4096
"""Looked through at a time."""


@triton.jit
def choose_experts(
    logits, experts, weights, loads, EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_CHOSEN: tl.constexpr,
    PAIRED: tl.constexpr,
):  # fmt: skip
    """The likeliest experts of one token; of equals the one of the lower number comes first.

    Args:
        logits: where a token's are.
        experts: where to write the token's.
        weights: where to write their weights.
        loads: counted up.
        EXPERTS: how many there are.
        CHOSEN: how many of them.
        NORM: their weights are scaled to sum to 1.
        BLOCK: of experts.
        BLOCK_CHOSEN: of those chosen.
        PAIRED: of `keys_of`.
    """
    picked, shares = picked_experts(logits, EXPERTS, CHOSEN, NORM, BLOCK, PAIRED)
    place = tl.arange(0, BLOCK_CHOSEN)
    there = place < CHOSEN
    mine = by_place(picked, place, CHOSEN)
    tl.store(experts + place, mine.to(tl.int64), mask=there)
    share = by_place(shares, place, CHOSEN)
    tl.store(weights + place, share.to(weights.dtype.element_ty), mask=there)
    tl.atomic_add(loads + mine, 1, mask=there, sem="relaxed")


@triton.jit
def _route_kernel(
    logits, experts, weights, loads, stride, EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_CHOSEN: tl.constexpr,
    PAIRED: tl.constexpr,
):  # fmt: skip
    """Program: one token."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    choose_experts(
        logits + token * stride, experts + token * CHOSEN, weights + token * CHOSEN,
        loads, EXPERTS, CHOSEN, NORM, BLOCK, BLOCK_CHOSEN, PAIRED,
    )  # fmt: skip


def route(
    logits: torch.Tensor, num_chosen: int, *, norm_weights: bool, loads: torch.Tensor
) -> Routing:
    """`ops.moe.Route` for logits [T, E] with contiguous rows."""
    tokens, num_experts = logits.shape
    experts = torch.empty(tokens, num_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(tokens, num_chosen, dtype=logits.dtype, device=logits.device)
    _route_kernel[(tokens,)](
        logits, experts, weights, loads, logits.stride(0), EXPERTS=num_experts,
        CHOSEN=num_chosen, NORM=norm_weights, BLOCK=power_of_two(num_experts, LEAST_BLOCK),
        PAIRED=is_paired(logits),
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
    _sort_kernel[(num_experts,)](
        experts, order, starts, pairs, BLOCK=block, num_warps=min(8, max(1, block // 256)), **LAUNCH
    )
    return order, starts
