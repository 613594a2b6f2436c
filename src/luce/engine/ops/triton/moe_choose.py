"""What comes before a mixture's products, for a few tokens in one kernel.

Programs of a token make some of the router's logits each, out of the norm, which each makes for
itself; the last of them to be done chooses the experts, if it shall. One more leaves the normalised
row as the words that the products take.
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
from luce.engine.ops.triton.moe_pick import LEAST_BLOCK, is_paired
from luce.engine.ops.triton.moe_route import choose_experts
from luce.engine.ops.triton.norm_quantise import WORDS, quantise_in_orders
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs
from luce.loaders.quant_formats import GROUP

MOST_TOKENS = 16
"""Every token reads the router's matrix anew; beyond, a product of all of them is less."""
_MOST_COLUMNS = 8192
_ROWS = 2
_WORD_GROUPS = 16
_WARP_COLUMNS = 2048
_SPREAD = 4
"""Programs of the same rows; of more tokens than these each makes the logits of several."""


@triton.jit
def _load_row(hidden, token, stride, SIZE: tl.constexpr, BLOCK_IN: tl.constexpr):
    """A token's row."""
    columns = tl.arange(0, BLOCK_IN)
    return tl.load(hidden + token * stride + columns, mask=columns < SIZE, other=0.0)


@triton.jit
def _inverse_length(wide, eps, SIZE: tl.constexpr):
    """Of the RMS of a row in float32."""
    return tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)


@triton.jit
def _leave_words(
    row, x, factors, words, eps, plane, groups, dtype: tl.constexpr, SIZE: tl.constexpr,
    num_groups: tl.constexpr, BG: tl.constexpr, PLAIN: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """The words of some groups of a token's normalised row."""
    at = groups[:, None] * 32 + tl.arange(0, 32)[None, :]
    mine = tl.load(x + at, mask=(groups < num_groups)[:, None], other=0.0).to(tl.float32)
    inverse = _inverse_length(row.to(tl.float32), eps, SIZE)
    # Rounded before the weight, as `ops.pointwise.RmsNorm` has it.
    normal = (mine * inverse).to(dtype) * factors
    quantise_in_orders(words, normal.to(tl.float32), groups, plane, num_groups, BG, PLAIN, TABLE)


@triton.jit
def _leave_logits(
    row, w, factors, logits, rows, num_logits, eps, dtype: tl.constexpr, SIZE: tl.constexpr
):
    """Some of a token's logits, from rows of the router and the norm's weight."""
    wide = row.to(tl.float32)
    # Rounded before the weight, as `ops.pointwise.RmsNorm` has it.
    normal = (wide * _inverse_length(wide, eps, SIZE)).to(dtype) * factors
    result = tl.sum(w.to(tl.float32) * normal.to(tl.float32)[None, :], 1)
    tl.store(logits + rows, result.to(dtype), mask=rows < num_logits)


@triton.jit
def _choose_kernel(
    hidden, norm, matrix, words, logits, experts, weights, loads, arrivals,
    eps, stride, plane, num_tokens, num_logits, logit_stride, TOKENS: tl.constexpr,
    SIZE: tl.constexpr, CHOSEN: tl.constexpr, NORM: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr, BLOCK: tl.constexpr, BLOCK_CHOSEN: tl.constexpr,
    num_groups: tl.constexpr, BG: tl.constexpr, PLAIN: tl.constexpr, TABLE: tl.constexpr,
    CHOOSES: tl.constexpr, EXPERTS: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """Program (groups of words, or then rows of the router; TOKENS tokens)."""
    ahead: tl.constexpr = (num_groups + BG - 1) // BG
    part, first = tl.program_id(0) - ahead, tl.program_id(1).to(tl.int64) * TOKENS
    last = tl.minimum(first + TOKENS, num_tokens)
    parts = tl.num_programs(0) - ahead
    dtype: tl.constexpr = hidden.dtype.element_ty
    if part < 0:
        groups = (part + ahead) * BG + tl.arange(0, BG)
        at = groups[:, None] * 32 + tl.arange(0, 32)[None, :]
        scales = tl.load(norm + at, mask=(groups < num_groups)[:, None], other=0.0)
        wait_for_inputs()
        row = _load_row(hidden, first, stride, SIZE, BLOCK_IN)
        for token in range(first, last):
            following = row
            if TOKENS > 1:
                # The next row is on its way while this one is worked on.
                next_token = tl.minimum(token + 1, last - 1)
                following = _load_row(hidden, next_token, stride, SIZE, BLOCK_IN)
            _leave_words(
                row, hidden + token * stride, scales, words + token * (19 * num_groups), eps,
                plane, groups, dtype, SIZE, num_groups, BG, PLAIN, TABLE,
            )  # fmt: skip
            row = following
    else:
        rows, columns = part * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_IN)
        # The weights, and the norm's, are on their way before the kernel ahead is done.
        inside = (rows < num_logits)[:, None] & (columns < SIZE)[None, :]
        w = tl.load(matrix + rows[:, None] * SIZE + columns[None, :], mask=inside, other=0.0)
        factors = tl.load(norm + columns, mask=columns < SIZE, other=0.0)
        wait_for_inputs()
        row = _load_row(hidden, first, stride, SIZE, BLOCK_IN)
        for token in range(first, last):
            following = row
            if TOKENS > 1:
                next_token = tl.minimum(token + 1, last - 1)
                following = _load_row(hidden, next_token, stride, SIZE, BLOCK_IN)
            _leave_logits(
                row, w, factors, logits + token * logit_stride, rows, num_logits, eps, dtype, SIZE
            )
            row = following
        if CHOOSES:
            # All threads have written before one of them says so.
            tl.debug_barrier()
            arrival = arrivals + tl.program_id(1)
            if tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == parts - 1:
                tl.store(arrival, 0)
                for token in range(first, last):
                    choose_experts(
                        logits + token * logit_stride, experts + token * CHOSEN,
                        weights + token * CHOSEN, loads, EXPERTS, CHOSEN, NORM, BLOCK,
                        BLOCK_CHOSEN, PAIRED,
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
    tokens, chosen = len(hidden), router.num_chosen
    routing = Routing(
        experts=hidden.new_empty(tokens, chosen, dtype=torch.int64),
        weights=hidden.new_empty(tokens, chosen),
    )
    words, logits = _launch(hidden, norm, router, orders, (routing, arrivals))
    has_gate = logits.shape[1] > router.num_experts
    return ChosenWords(words, routing, logits[:, router.num_experts :] if has_gate else None)


def words_and_logits(
    hidden: torch.Tensor, norm: NormWeight, router: Router, orders: tuple[bool, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """`choose` without choosing: words, int32 [orders, T, 19, K / 32], and logits."""
    return _launch(hidden, norm, router, orders, None)


def _launch(
    hidden: torch.Tensor,
    norm: NormWeight,
    router: Router,
    orders: tuple[bool, ...],
    choice: tuple[Routing, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and logits; fills the routing, if there is one, by such arrivals."""
    gate = router.gate
    assert isinstance(gate, DeviceLinear)
    (tokens, size), num_logits = hidden.shape, gate.weight.shape[0]
    chosen, groups = router.num_chosen, size // GROUP
    words = hidden.new_empty(len(orders), tokens, WORDS, groups, dtype=torch.int32)
    # Room for whole words, and more: a product of an odd width would take a slow kernel elsewhere.
    logits = hidden.new_empty(tokens, -(-num_logits // 8) * 8)[:, :num_logits]
    # Any tensors, where they are not used.
    routing, arrivals = (Routing(words, logits), words) if choice is None else choice
    block_groups, block_in = min(_WORD_GROUPS, power_of_two(groups)), power_of_two(size)
    parts = triton.cdiv(num_logits, _ROWS) + triton.cdiv(groups, block_groups)
    each = power_of_two(triton.cdiv(tokens, _SPREAD))
    _choose_kernel[(parts, triton.cdiv(tokens, each))](
        hidden, norm.weight, gate.weight, words, logits, routing.experts, routing.weights,
        router.loads, arrivals, norm.eps, hidden.stride(0), tokens * WORDS * groups,
        tokens, num_logits, logits.stride(0), TOKENS=each,
        SIZE=size, CHOSEN=chosen, NORM=router.norm_weights, ROWS=_ROWS,
        BLOCK_IN=block_in, BLOCK=power_of_two(router.num_experts, LEAST_BLOCK),
        BLOCK_CHOSEN=power_of_two(chosen), num_groups=groups, BG=block_groups,
        PLAIN=False in orders, TABLE=True in orders, CHOOSES=choice is not None,
        EXPERTS=router.num_experts, PAIRED=is_paired(logits),
        num_warps=max(1, block_in // _WARP_COLUMNS), **LAUNCH,
    )  # fmt: skip
    return words, logits
