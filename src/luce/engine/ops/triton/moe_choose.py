"""What comes before a mixture's products, for a few tokens in one kernel.

Programs of a token make some of the router's logits each, out of the norm, which each makes for
itself; the last of them to be done chooses the experts. One more leaves the normalised row as the
words that the products take.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import Router, Routing
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.ops.triton.moe_route import choose_experts
from luce.engine.ops.triton.norm_quantise import WORDS, quantise_in_orders
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs
from luce.loaders.quant_formats import GROUP

MOST_TOKENS = 16
"""Every token reads the router's matrix anew; beyond, a product of all of them is less."""
_MOST_COLUMNS = 8192
_ROWS = 4


@triton.jit
def _normalised(x, factors, eps, SIZE: tl.constexpr, dtype: tl.constexpr):
    """RMS norm of a row of any shape, rounded before the weight as `ops.pointwise.RmsNorm` is."""
    wide = x.to(tl.float32)
    mean = tl.sum(tl.ravel(wide * wide), 0) / SIZE
    return (wide * tl.rsqrt(mean + eps)).to(dtype) * factors


@triton.jit
def _leave_words(
    x, norm, words, eps, plane, dtype: tl.constexpr, SIZE: tl.constexpr,
    num_groups: tl.constexpr, BG: tl.constexpr, PLAIN: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """The words of a token's normalised row."""
    groups = tl.arange(0, BG)
    at = groups[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = (groups < num_groups)[:, None]
    factors = tl.load(norm + at, mask=inside, other=0.0)
    wait_for_inputs()
    row = _normalised(tl.load(x + at, mask=inside, other=0.0), factors, eps, SIZE, dtype)
    quantise_in_orders(words, row.to(tl.float32), groups, plane, num_groups, BG, PLAIN, TABLE)


@triton.jit
def _leave_logits(
    x, norm, matrix, logits, rows, num_logits, eps, dtype: tl.constexpr, SIZE: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """Some of a token's logits."""
    columns = tl.arange(0, BLOCK_IN)
    real = columns < SIZE
    there = rows < num_logits
    # The weights, and the norm's, are on their way before the kernel ahead is done.
    lines = matrix + rows[:, None] * SIZE + columns[None, :]
    w = tl.load(lines, mask=there[:, None] & real[None, :], other=0.0).to(tl.float32)
    factors = tl.load(norm + columns, mask=real, other=0.0)
    wait_for_inputs()
    row = _normalised(tl.load(x + columns, mask=real, other=0.0), factors, eps, SIZE, dtype)
    result = tl.sum(w * row.to(tl.float32)[None, :], 1)
    tl.store(logits + rows, result.to(dtype), mask=there)


@triton.jit
def _choose_kernel(
    hidden, norm, matrix, words, logits, experts, weights, loads, arrivals,
    eps, stride, plane, num_logits, num_experts,
    SIZE: tl.constexpr, CHOSEN: tl.constexpr, NORM: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr, BLOCK: tl.constexpr, BLOCK_CHOSEN: tl.constexpr,
    num_groups: tl.constexpr, BG: tl.constexpr, PLAIN: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Program (rows of the router, or last of all the words; token)."""
    part, token = tl.program_id(0), tl.program_id(1).to(tl.int64)
    parts = tl.num_programs(0) - 1
    dtype: tl.constexpr = hidden.dtype.element_ty
    x = hidden + token * stride
    if part == parts:
        _leave_words(
            x, norm, words + token * (19 * num_groups), eps, plane, dtype, SIZE,
            num_groups, BG, PLAIN, TABLE,
        )  # fmt: skip
    else:
        mine = logits + token * num_logits
        rows = part * ROWS + tl.arange(0, ROWS)
        _leave_logits(x, norm, matrix, mine, rows, num_logits, eps, dtype, SIZE, BLOCK_IN)
        # All threads have written before one of them says so.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + token, 1, sem="acq_rel", scope="gpu") == parts - 1:
            tl.store(arrivals + token, 0)
            index = tl.arange(0, BLOCK)
            # Past this multiprocessor's own cache: other ones wrote it.
            every = tl.load(
                mine + index, mask=index < num_experts, other=float("-inf"), cache_modifier=".cg"
            )
            choose_experts(
                every, num_experts, experts + token * CHOSEN, weights + token * CHOSEN, loads,
                CHOSEN, NORM, BLOCK, BLOCK_CHOSEN,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChosenWords:
    """What the products of a mixture read.

    Attributes:
        words: int32 [orders, T, 19, K / 32].
        routing: of the tokens.
        gate: [T, 1]: the logits of the shared expert's gate, where it has one.
    """

    words: torch.Tensor
    routing: Routing
    gate: torch.Tensor | None


def takes(gate: Linear, tokens: int) -> bool:
    """Whether a router with such a product can be one kernel for so many tokens."""
    if not isinstance(gate, DeviceLinear) or gate.bias is not None:
        return False
    return tokens <= MOST_TOKENS and gate.weight.shape[1] <= _MOST_COLUMNS


def choose(
    hidden: torch.Tensor,
    norm: NormWeight,
    router: Router,
    orders: tuple[bool, ...],
    arrivals: torch.Tensor,
) -> ChosenWords:
    """Norm, router and words of at most `MOST_TOKENS` tokens.

    Args:
        hidden: [T, K], contiguous rows of whole groups.
        norm: of K.
        router: that `takes` accepts.
        orders: of the words, as in `norm_and_quantise`.
        arrivals: i32 [MOST_TOKENS], 0 between launches.
    """
    gate = router.gate
    assert isinstance(gate, DeviceLinear)
    (tokens, size), num_logits = hidden.shape, gate.weight.shape[0]
    chosen, groups = router.num_chosen, size // GROUP
    words = hidden.new_empty(len(orders), tokens, WORDS, groups, dtype=torch.int32)
    logits = hidden.new_empty(tokens, num_logits)
    routing = Routing(
        experts=hidden.new_empty(tokens, chosen, dtype=torch.int64),
        weights=hidden.new_empty(tokens, chosen),
    )
    block_groups = power_of_two(groups)
    _choose_kernel[(triton.cdiv(num_logits, _ROWS) + 1, tokens)](
        hidden, norm.weight, gate.weight, words, logits, routing.experts, routing.weights,
        router.loads, arrivals, norm.eps, hidden.stride(0), tokens * WORDS * groups,
        num_logits, router.num_experts,
        SIZE=size, CHOSEN=chosen, NORM=router.norm_weights, ROWS=_ROWS,
        BLOCK_IN=power_of_two(size), BLOCK=power_of_two(router.num_experts),
        BLOCK_CHOSEN=power_of_two(chosen), num_groups=groups, BG=block_groups,
        PLAIN=False in orders, TABLE=True in orders,
        num_warps=min(8, max(1, block_groups // 16)), **LAUNCH,
    )  # fmt: skip
    has_gate = num_logits > router.num_experts
    return ChosenWords(words, routing, logits[:, router.num_experts :] if has_gate else None)
