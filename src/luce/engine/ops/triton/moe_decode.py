"""A mixture of quantised experts for few tokens: two kernels from normalised rows to the residual.

`inner_products` makes silu(gate x) * up x of every pair of a token and an expert, the shared
expert's among them; `moe_outer.outer_products` makes a token's weighted sum of its experts' results
and adds it to the residual. Weights meet 16-bit activations as in `quant_vector`.

An expert's weights are read and unpacked once for all its tokens in the first kernel. Which those
are every program finds out alone, among the pairs of the step: the first of every RUN pairs of an
expert computes them all, programs of the others end at once. So nothing is sorted, and a token's
result depends on its own pairs alone, in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from luce.engine.ops.triton.moe_pick import picked_expert
from luce.engine.ops.triton.moe_quant import groups_from
from luce.engine.ops.triton.numeric import OVERLAPS, sigmoid
from luce.engine.ops.triton.quant_activations import for_every_row, load_quantised
from luce.engine.ops.triton.quant_vector import dot_groups
from luce.engine.ops.triton.quant_words import (
    codes_from,
    decode_codes,
    decode_scales,
    load_codes,
    load_scales,
    scales_from,
)


@triton.jit
def _wait_for_choice():
    """As `wait_for_inputs`, but the next kernel starts only then: so it knows the choice."""
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _ask_first():
    """Reads before it are begun before those after it; the compiler would delay some of them."""
    if OVERLAPS:
        gdc_wait()


@triton.jit
def rows_from(start, SIZE: tl.constexpr, BN: tl.constexpr):
    """The first row of BN from `start` on, and the others as counted from there; all exist."""
    if SIZE % BN == 0:
        first = tl.minimum(start, SIZE - BN)
        rows = tl.arange(0, BN)
    else:
        first = tl.minimum(start, SIZE - 1)
        rows = tl.minimum(tl.arange(0, BN), SIZE - 1 - first)
    return first, rows


@triton.jit
def rows_of_weights(
    codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, first, rows, num_groups: tl.constexpr,
    BN: tl.constexpr, BG: tl.constexpr, CODES: tl.constexpr, HIGH: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    """What is stored of whole rows, counted from the first: of the codes, then of the scales."""
    groups = groups_from(0, num_groups, BG)
    first = first.to(tl.int64)
    codes_ptr, two_ptr, high_ptr = codes_from(
        codes_ptr, two_ptr, high_ptr, first, num_groups, CODES, HIGH
    )
    scales_ptr, blocks_ptr = scales_from(scales_ptr, blocks_ptr, first, num_groups, SCALE)
    stored = load_codes(
        codes_ptr, two_ptr, high_ptr, rows, groups, 0, num_groups, BN, BG, CODES, HIGH
    )
    scales = load_scales(
        scales_ptr, blocks_ptr, rows[:, None], groups[None, :], num_groups, SCALE, BG
    )
    return stored + scales


@triton.jit
def product_of_groups(
    x, stored, groups, BN: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Products of what is stored of rows and a row of x by groups, but for x's scales."""
    SHIFTED: tl.constexpr = CODES == 4 and HIGH == 0 and TABLE == 0
    codes = decode_codes(stored[:10], CODES, HIGH, TABLE, ASM, SHIFTED)
    scales = decode_scales(stored[10], stored[11], stored[12], groups[None, :], SCALE, True)
    return dot_groups(x, codes, scales, BN, BG, ZERO, SIGNED, SHIFTED, SCALE, HAS_OFFSET, ASM)


@triton.jit
def _gated_product(
    x_ptr, gate, up, num_groups: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """silu(gate x) * up x of a quantised row, [BN], in float32."""
    x = for_every_row(load_quantised(x_ptr, tl.arange(0, BG), num_groups, BG))
    x_scale = x[16].to(tl.float32, bitcast=True)
    groups = groups_from(0, num_groups, BG)
    gate_part = product_of_groups(
        x, gate, groups, BN, BG, CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, HAS_OFFSET, ASM
    )
    up_part = product_of_groups(
        x, up, groups, BN, BG, CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, HAS_OFFSET, ASM
    )
    gate_sum = tl.sum(gate_part * x_scale, 1)
    return gate_sum * sigmoid(gate_sum) * tl.sum(up_part * x_scale, 1)


@triton.jit
def _ask_ahead(codes_ptr, WORDS: tl.constexpr, ASM: tl.constexpr):
    """Have this program's share of what the next kernel reads brought nearer."""
    if ASM:
        lines: tl.constexpr = (WORDS + 31) // 32
        each = tl.cdiv(lines, tl.num_programs(0))
        for first in range(0, each, 32):
            line = first + tl.arange(0, 32)
            line = tl.program_id(0) * each + tl.minimum(line, each - 1)
            at = codes_ptr + tl.minimum(line, lines - 1) * 32
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip


@triton.jit
def _by_column(outs, SIZE: tl.constexpr):
    """Where a row's numbers lie: the first ones of all groups of 32, then the second ones."""
    return outs % 32 * (SIZE // 32) + outs // 32


@triton.jit(
    do_not_specialize=["num_pairs", "shared_runs"],
    do_not_specialize_on_alignment=[
        "loads", "next_ptr", "xq", "s_xq",
        "two_ptr", "high_ptr", "scales_ptr", "blocks_ptr",
        "s_two_ptr", "s_high_ptr", "s_scales_ptr", "s_blocks_ptr",
    ],
)  # fmt: skip
def inner_products(
    xq, s_xq, experts, inner, s_inner, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr,
    s_codes_ptr, s_two_ptr, s_high_ptr, s_scales_ptr, s_blocks_ptr, num_pairs, shared_runs,
    loads, next_ptr,
    CHOSEN: tl.constexpr, SIZE: tl.constexpr, S_SIZE: tl.constexpr, num_groups: tl.constexpr,
    BN: tl.constexpr, BG: tl.constexpr, RUN: tl.constexpr, BLOCK_PAIRS: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr,
    S_CODES: tl.constexpr, S_HIGH: tl.constexpr, S_ZERO: tl.constexpr, S_TABLE: tl.constexpr,
    S_SIGNED: tl.constexpr, S_SCALE: tl.constexpr, S_HAS_OFFSET: tl.constexpr, ASM: tl.constexpr,
    EXPERTS: tl.constexpr, BLOCK_EXPERTS: tl.constexpr, PAIRED: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Program (rows of the gate, run of the shared expert's tokens or pair).

    Without BLOCK_PAIRS there is one token, whose experts all differ. With BLOCK_EXPERTS, its
    router's logits stand in place of experts, and every program finds its own. AHEAD words of an
    expert are what the next kernel will read. Results are float32, a row's groups of 32 next to
    each other column by column: so `quantised_columns` reads them.
    """
    place = tl.program_id(1)
    start = tl.program_id(0) * BN
    outs = start + tl.arange(0, BN)
    if place < shared_runs:
        if S_SIZE != 0:
            first, rows = rows_from(start, S_SIZE, BN)
            gate = rows_of_weights(
                s_codes_ptr, s_two_ptr, s_high_ptr, s_scales_ptr, s_blocks_ptr, first, rows,
                num_groups, BN, BG, S_CODES, S_HIGH, S_SCALE,
            )  # fmt: skip
            up = rows_of_weights(
                s_codes_ptr, s_two_ptr, s_high_ptr, s_scales_ptr, s_blocks_ptr, first + S_SIZE,
                rows, num_groups, BN, BG, S_CODES, S_HIGH, S_SCALE,
            )  # fmt: skip
            _wait_for_choice()
            last = tl.minimum(place * RUN + RUN, num_pairs // CHOSEN)
            for token in range(place * RUN, last):
                result = _gated_product(
                    s_xq + token * (19 * num_groups), gate, up, num_groups, BN, BG,
                    S_CODES, S_HIGH, S_ZERO, S_TABLE, S_SIGNED, S_SCALE, S_HAS_OFFSET, ASM,
                )  # fmt: skip
                at = s_inner + token * S_SIZE + _by_column(outs, S_SIZE)
                tl.store(at, result, mask=outs < S_SIZE)
    else:
        _wait_for_choice()
        pair = place - shared_runs
        if BLOCK_EXPERTS != 0:
            expert = picked_expert(experts, pair, EXPERTS, BLOCK_EXPERTS, PAIRED)
            if tl.program_id(0) == 0:
                tl.atomic_add(loads + expert, 1, sem="relaxed")
        else:
            expert = tl.load(experts + pair).to(tl.int32)
        count = 1
        rank = 0
        index = tl.arange(0, 1)
        mine = index == 0
        if BLOCK_PAIRS != 0:
            index = tl.arange(0, BLOCK_PAIRS)
            every = tl.load(experts + index, mask=index < num_pairs, other=-1).to(tl.int32)
            mine = every == expert
            # Both sums in one: all pairs of the expert, and those before this one.
            both = tl.sum(tl.where(mine, 65536 + (index < pair).to(tl.int32), 0), 0)
            rank = both & 65535
            count = tl.minimum((both >> 16) - rank, RUN)
        if rank % RUN == 0:
            first, rows = rows_from(start, SIZE, BN)
            first += expert * (2 * SIZE)
            gate = rows_of_weights(
                codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, first, rows,
                num_groups, BN, BG, CODES, HIGH, SCALE,
            )  # fmt: skip
            up = rows_of_weights(
                codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, first + SIZE, rows,
                num_groups, BN, BG, CODES, HIGH, SCALE,
            )  # fmt: skip
            if AHEAD != 0:
                _ask_ahead(next_ptr + expert.to(tl.int64) * AHEAD, AHEAD, ASM)
            _ask_first()
            for done in range(count):
                result = _gated_product(
                    xq + pair // CHOSEN * (19 * num_groups), gate, up, num_groups, BN, BG,
                    CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, HAS_OFFSET, ASM,
                )  # fmt: skip
                at = inner + pair * SIZE + _by_column(outs, SIZE)
                tl.store(at, result, mask=outs < SIZE)
                if BLOCK_PAIRS != 0 and done + 1 < count:
                    pair = tl.min(tl.where(mine & (index > pair), index, BLOCK_PAIRS - 1), 0)
