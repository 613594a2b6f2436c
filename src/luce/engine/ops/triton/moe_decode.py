"""A mixture of quantised experts for few tokens: two kernels from normalised rows to the residual.

`inner_products` makes silu(gate x) * up x of every pair of a token and an expert, the shared
expert's among them; `outer_products` makes a token's weighted sum of its experts' results and
adds it to the residual. Weights meet 16-bit activations as in `quant_vector`.

An expert's weights are read and unpacked once for all its tokens in the first kernel. Which those
are every program finds out alone, among the pairs of the step: the first of every RUN pairs of an
expert computes them all, programs of the others end at once. So nothing is sorted, and a token's
result depends on its own pairs alone, in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from luce.engine.ops.triton.moe_quant import groups_from
from luce.engine.ops.triton.numeric import sigmoid, wait_for_inputs
from luce.engine.ops.triton.quant_vector import (
    dot_groups,
    for_every_row,
    load_quantised,
    quantised_columns,
)
from luce.engine.ops.triton.quant_words import (
    decode_codes,
    decode_scales,
    load_codes,
    load_scales,
)


@triton.jit
def _rows_of_weights(
    codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, rows, num_groups: tl.constexpr,
    BN: tl.constexpr, BG: tl.constexpr, CODES: tl.constexpr, HIGH: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    """What is stored of whole rows: of the codes, then of the scales."""
    groups = groups_from(0, num_groups, BG)
    stored = load_codes(
        codes_ptr, two_ptr, high_ptr, rows, groups, 0, num_groups, BN, BG, CODES, HIGH
    )
    scales = load_scales(
        scales_ptr, blocks_ptr, rows[:, None], groups[None, :], num_groups, SCALE, BG
    )
    return stored + scales


@triton.jit
def _product(
    x, stored, groups, BN: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Products of what is stored of rows and a row of x by groups, but for x's scales."""
    codes = decode_codes(stored[:10], CODES, HIGH, TABLE, ASM)
    scales = decode_scales(stored[10], stored[11], stored[12], groups[None, :], SCALE)
    return dot_groups(x, codes, scales, BN, BG, ZERO, SIGNED, SCALE, HAS_OFFSET, ASM)


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
    gate_part = _product(
        x, gate, groups, BN, BG, CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, HAS_OFFSET, ASM
    )
    up_part = _product(
        x, up, groups, BN, BG, CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, HAS_OFFSET, ASM
    )
    gate_sum = tl.sum(gate_part * x_scale, 1)
    return gate_sum * sigmoid(gate_sum) * tl.sum(up_part * x_scale, 1)


@triton.jit
def _by_column(outs, SIZE: tl.constexpr):
    """Where a row's numbers lie: the first ones of all groups of 32, then the second ones."""
    return outs % 32 * (SIZE // 32) + outs // 32


@triton.jit(
    do_not_specialize=["num_pairs", "shared_runs"],
    do_not_specialize_on_alignment=[
        "xq", "s_xq", "two_ptr", "high_ptr", "scales_ptr", "blocks_ptr",
        "s_two_ptr", "s_high_ptr", "s_scales_ptr", "s_blocks_ptr",
    ],
)  # fmt: skip
def inner_products(
    xq, s_xq, experts, inner, s_inner, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr,
    s_codes_ptr, s_two_ptr, s_high_ptr, s_scales_ptr, s_blocks_ptr, num_pairs, shared_runs,
    CHOSEN: tl.constexpr, SIZE: tl.constexpr, S_SIZE: tl.constexpr, num_groups: tl.constexpr,
    BN: tl.constexpr, BG: tl.constexpr, RUN: tl.constexpr, BLOCK_PAIRS: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr,
    S_CODES: tl.constexpr, S_HIGH: tl.constexpr, S_ZERO: tl.constexpr, S_TABLE: tl.constexpr,
    S_SIGNED: tl.constexpr, S_SCALE: tl.constexpr, S_HAS_OFFSET: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Program (rows of the gate, run of the shared expert's tokens or pair).

    Without BLOCK_PAIRS there is one token, whose experts all differ. Results are float32, a row's
    groups of 32 next to each other column by column: so `quantised_columns` reads them.
    """
    place = tl.program_id(1)
    outs = tl.program_id(0) * BN + tl.arange(0, BN)
    if place < shared_runs:
        if S_SIZE != 0:
            rows = tl.minimum(outs, S_SIZE - 1)
            gate = _rows_of_weights(
                s_codes_ptr, s_two_ptr, s_high_ptr, s_scales_ptr, s_blocks_ptr, rows,
                num_groups, BN, BG, S_CODES, S_HIGH, S_SCALE,
            )  # fmt: skip
            up = _rows_of_weights(
                s_codes_ptr, s_two_ptr, s_high_ptr, s_scales_ptr, s_blocks_ptr, rows + S_SIZE,
                num_groups, BN, BG, S_CODES, S_HIGH, S_SCALE,
            )  # fmt: skip
            wait_for_inputs()
            last = tl.minimum(place * RUN + RUN, num_pairs // CHOSEN)
            for token in range(place * RUN, last):
                result = _gated_product(
                    s_xq + token * (19 * num_groups), gate, up, num_groups, BN, BG,
                    S_CODES, S_HIGH, S_ZERO, S_TABLE, S_SIGNED, S_SCALE, S_HAS_OFFSET, ASM,
                )  # fmt: skip
                at = s_inner + token * S_SIZE + _by_column(outs, S_SIZE)
                tl.store(at, result, mask=outs < S_SIZE)
    else:
        wait_for_inputs()
        pair = place - shared_runs
        expert = tl.load(experts + pair).to(tl.int32)
        count = 1
        rank = 0
        index = tl.arange(0, 1)
        mine = index == 0
        if BLOCK_PAIRS != 0:
            index = tl.arange(0, BLOCK_PAIRS)
            every = tl.load(experts + index, mask=index < num_pairs, other=-1).to(tl.int32)
            mine = every == expert
            rank = tl.sum((mine & (index < pair)).to(tl.int32), 0)
            count = tl.minimum(tl.sum(mine.to(tl.int32), 0) - rank, RUN)
        if rank % RUN == 0:
            rows = expert * (2 * SIZE) + tl.minimum(outs, SIZE - 1)
            gate = _rows_of_weights(
                codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, rows,
                num_groups, BN, BG, CODES, HIGH, SCALE,
            )  # fmt: skip
            up = _rows_of_weights(
                codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, rows + SIZE,
                num_groups, BN, BG, CODES, HIGH, SCALE,
            )  # fmt: skip
            for _ in range(count):
                result = _gated_product(
                    xq + pair // CHOSEN * (19 * num_groups), gate, up, num_groups, BN, BG,
                    CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, HAS_OFFSET, ASM,
                )  # fmt: skip
                at = inner + pair * SIZE + _by_column(outs, SIZE)
                tl.store(at, result, mask=outs < SIZE)
                if BLOCK_PAIRS != 0:
                    pair = tl.min(tl.where(mine & (index > pair), index, BLOCK_PAIRS - 1), 0)


@triton.jit
def _lines_of_choices(experts, rows, choices, num_rows: tl.constexpr, EACH: tl.constexpr):
    """Rows of all experts' matrices, [BN, columns]: EACH columns are of the same choice."""
    # The compiler cannot know that neighbours are alike, and would read the words one by one.
    expert = tl.max_constancy(tl.load(experts + choices).to(tl.int32), [EACH])
    return expert[None, :] * num_rows + rows[:, None]


@triton.jit
def _words_of_choices(
    codes_ptr, lines, row_words: tl.constexpr, num_groups: tl.constexpr,
    BN: tl.constexpr, COLUMNS: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    """The four words of each group, [BN, COLUMNS] each, of lines [BN, COLUMNS * 4]."""
    columns = (tl.arange(0, COLUMNS * 4) % (BG * 4))[None, :]
    at = codes_ptr + lines * row_words + columns
    if num_groups % BG == 0:
        words = tl.load(at)
    else:
        words = tl.load(at, mask=columns < num_groups * 4, other=0)
    even, odd = tl.split(tl.reshape(words, (BN, COLUMNS, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _codes_of_choices(
    codes_ptr, two_ptr, high_ptr, word_lines, lines, groups, num_groups: tl.constexpr,
    BN: tl.constexpr, COLUMNS: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """As `load_codes`, where each run of BG columns is of another expert.

    Args:
        word_lines: of `_lines_of_choices`, for each word of a group.
        lines: for each group.
        groups: [1, COLUMNS].
    """
    group_words: tl.constexpr = 4 * num_groups
    two_at = lines * (2 * num_groups) + groups
    if CODES == 4:
        w0, w1, w2, w3 = _words_of_choices(
            codes_ptr, word_lines, group_words, num_groups, BN, COLUMNS, BG
        )
        v0, v1, v2, v3 = w0, w1, w2, w3
    elif CODES == 8:
        row_words: tl.constexpr = 2 * group_words
        w0, w1, w2, w3 = _words_of_choices(
            codes_ptr, word_lines, row_words, num_groups, BN, COLUMNS, BG
        )
        v0, v1, v2, v3 = _words_of_choices(
            codes_ptr + group_words, word_lines, row_words, num_groups, BN, COLUMNS, BG
        )
    else:
        w0 = tl.load(two_ptr + two_at)
        v0 = tl.load(two_ptr + two_at + num_groups)
        w1, w2, w3 = w0, w0, w0
        v1, v2, v3 = v0, v0, v0
    bits_low = w0
    bits_high = w0
    if HIGH == 1:
        bits_low = tl.load(high_ptr + lines * num_groups + groups)
    if HIGH == 2:
        bits_low = tl.load(high_ptr + two_at)
        bits_high = tl.load(high_ptr + two_at + num_groups)
    return w0, w1, w2, w3, v0, v1, v2, v3, bits_low, bits_high


@triton.jit(
    do_not_specialize_on_alignment=[
        "gate", "two_ptr", "high_ptr", "scales_ptr", "blocks_ptr",
        "s_two_ptr", "s_high_ptr", "s_scales_ptr", "s_blocks_ptr",
    ]
)  # fmt: skip
def outer_products(
    x, s_x, experts, weights, gate, hidden, gate_stride,
    codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr,
    s_codes_ptr, s_two_ptr, s_high_ptr, s_scales_ptr, s_blocks_ptr,
    CHOSEN: tl.constexpr, CHOICES: tl.constexpr, HIDDEN: tl.constexpr, BN: tl.constexpr,
    num_groups: tl.constexpr, BG: tl.constexpr, s_num_groups: tl.constexpr, S_BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr,
    S_CODES: tl.constexpr, S_HIGH: tl.constexpr, S_ZERO: tl.constexpr, S_TABLE: tl.constexpr,
    S_SIGNED: tl.constexpr, S_SCALE: tl.constexpr, S_HAS_OFFSET: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Program (token, rows of the result): hidden += its experts' weighted sum.

    CHOICES experts are columns of one product.
    """
    token = tl.program_id(0)
    outs = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = tl.minimum(outs, HIDDEN - 1)
    mask = outs < HIDDEN
    if s_num_groups != 0:
        shared = _rows_of_weights(
            s_codes_ptr, s_two_ptr, s_high_ptr, s_scales_ptr, s_blocks_ptr, rows,
            s_num_groups, BN, S_BG, S_CODES, S_HIGH, S_SCALE,
        )  # fmt: skip
    wait_for_inputs()
    COLUMNS: tl.constexpr = CHOICES * BG
    columns = tl.arange(0, COLUMNS)
    group = columns % BG
    groups = group
    if num_groups % BG != 0:
        groups = tl.minimum(group, num_groups - 1)
    sums = tl.zeros((BN, COLUMNS), tl.float32)
    for first in tl.static_range(0, CHOSEN, CHOICES):
        last: tl.constexpr = CHOSEN - 1
        choice = first + columns // BG
        pairs = token * CHOSEN + tl.minimum(choice, last)
        word_choice = first + tl.arange(0, COLUMNS * 4) // (BG * 4)
        word_pairs = token * CHOSEN + tl.minimum(word_choice, last)
        lines = _lines_of_choices(experts, rows, pairs, HIDDEN, BG)
        stored = _codes_of_choices(
            codes_ptr, two_ptr, high_ptr,
            _lines_of_choices(experts, rows, word_pairs, HIDDEN, BG * 4), lines, groups[None, :],
            num_groups, BN, COLUMNS, BG, CODES, HIGH,
        )  # fmt: skip
        stored = stored + load_scales(
            scales_ptr, blocks_ptr, lines, groups[None, :], num_groups, SCALE, BG
        )
        inside = (choice < CHOSEN) & (group < num_groups)
        x_at = x + pairs * (32 * num_groups) + groups
        words = for_every_row(quantised_columns(x_at, inside, num_groups, TABLE))
        value = _product(
            words, stored, groups, BN, COLUMNS,
            CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, HAS_OFFSET, ASM,
        )  # fmt: skip
        share = tl.load(weights + pairs, mask=inside, other=0.0).to(tl.float32)
        sums += value * (words[16].to(tl.float32, bitcast=True) * share[None, :])
    total = tl.sum(sums, 1)
    if s_num_groups != 0:
        s_groups = groups_from(0, s_num_groups, S_BG)
        # In the threads that hold its weights, where several have the same groups.
        every = tl.zeros((BN, 1), tl.int32)
        s_at = s_x + token * (32 * s_num_groups) + s_groups[None, :] + every
        s_inside = tl.arange(0, S_BG)[None, :] + every < s_num_groups
        s_words = quantised_columns(s_at, s_inside, s_num_groups, S_TABLE)
        s_value = _product(
            s_words, shared, s_groups, BN, S_BG,
            S_CODES, S_HIGH, S_ZERO, S_TABLE, S_SIGNED, S_SCALE, S_HAS_OFFSET, ASM,
        )  # fmt: skip
        s_value *= s_words[16].to(tl.float32, bitcast=True)
        open_by = sigmoid(tl.load(gate + token * gate_stride).to(tl.float32))
        total += open_by * tl.sum(s_value, 1)
    at = hidden + token * HIDDEN + outs
    total += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, total.to(hidden.dtype.element_ty), mask=mask)
