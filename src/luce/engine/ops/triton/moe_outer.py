"""The second kernel of a mixture of quantised experts for few tokens; see `moe_decode`.

It may begin when the choice is known: the first kernel lets it, once it has itself waited for
the choice. So its weights are on their way while the first kernel works.
"""

from __future__ import annotations

import triton
import triton.language as tl

from luce.engine.ops.triton.moe_decode import product_of_groups, rows_from, rows_of_weights
from luce.engine.ops.triton.moe_pick import by_place, picked_experts
from luce.engine.ops.triton.moe_quant import groups_from
from luce.engine.ops.triton.numeric import sigmoid, wait_for_inputs
from luce.engine.ops.triton.quant_activations import for_every_row, quantised_columns
from luce.engine.ops.triton.quant_words import load_scales, scales_from


@triton.jit
def _choices_of(
    experts, weights, token, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr,
    NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A token's experts and their weights; with BLOCK out of its logits, else where they are."""
    if BLOCK != 0:
        # Logits of one token begin at a whole word.
        PAIRED: tl.constexpr = experts.dtype.element_ty.primitive_bitwidth == 16
        found = picked_experts(experts, EXPERTS, CHOSEN, NORM, BLOCK, PAIRED)
    else:
        found = experts + token * CHOSEN, weights + token * CHOSEN
    return found


@triton.jit
def _lines_of_choices(
    experts, choices, CHOSEN: tl.constexpr, num_rows: tl.constexpr, EACH: tl.constexpr,
    OWN: tl.constexpr,
):  # fmt: skip
    """Where the expert of each column begins among the rows of all; EACH have the same one."""
    if OWN:
        expert = by_place(experts, choices, CHOSEN)
    else:
        # Past this multiprocessor's own cache: this program may begin before that forgets.
        expert = tl.load(experts + choices, cache_modifier=".cg").to(tl.int32)
    # The compiler cannot know that neighbours are alike, and would read the words one by one.
    return (tl.max_constancy(expert, [EACH]) * num_rows)[None, :]


@triton.jit
def _words_of_choices(
    codes_ptr, lines, rows, row_words: tl.constexpr, num_groups: tl.constexpr,
    BN: tl.constexpr, COLUMNS: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    """The four words of each group, [BN, COLUMNS] each, of lines [1, COLUMNS * 4]."""
    columns = (tl.arange(0, COLUMNS * 4) % (BG * 4))[None, :]
    at = codes_ptr + (lines * row_words + columns) + rows[:, None] * row_words
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
    codes_ptr, two_ptr, high_ptr, word_lines, lines, rows, groups, num_groups: tl.constexpr,
    BN: tl.constexpr, COLUMNS: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """As `load_codes`, where each run of BG columns is of another expert.

    Args:
        word_lines: of `_lines_of_choices`, for each word of a group.
        lines: for each group.
        rows: of the result, from the first on.
        groups: [1, COLUMNS].
    """
    group_words: tl.constexpr = 4 * num_groups
    two_at = lines * (2 * num_groups) + groups
    two_rows = rows[:, None] * (2 * num_groups)
    if CODES == 4:
        w0, w1, w2, w3 = _words_of_choices(
            codes_ptr, word_lines, rows, group_words, num_groups, BN, COLUMNS, BG
        )
        v0, v1, v2, v3 = w0, w1, w2, w3
    elif CODES == 8:
        row_words: tl.constexpr = 2 * group_words
        w0, w1, w2, w3 = _words_of_choices(
            codes_ptr, word_lines, rows, row_words, num_groups, BN, COLUMNS, BG
        )
        v0, v1, v2, v3 = _words_of_choices(
            codes_ptr + group_words, word_lines, rows, row_words, num_groups, BN, COLUMNS, BG
        )
    else:
        w0 = tl.load(two_ptr + two_at + two_rows)
        v0 = tl.load(two_ptr + (two_at + num_groups) + two_rows)
        w1, w2, w3 = w0, w0, w0
        v1, v2, v3 = v0, v0, v0
    bits_low = w0
    bits_high = w0
    if HIGH == 1:
        bits_low = tl.load(high_ptr + (lines * num_groups + groups) + rows[:, None] * num_groups)
    if HIGH == 2:
        bits_low = tl.load(high_ptr + two_at + two_rows)
        bits_high = tl.load(high_ptr + (two_at + num_groups) + two_rows)
    return w0, w1, w2, w3, v0, v1, v2, v3, bits_low, bits_high


@triton.jit
def _columns_of_choices(
    first, CHOSEN: tl.constexpr, CHOICES: tl.constexpr, num_groups: tl.constexpr, BG: tl.constexpr
):
    """Choice and group of each column, and whether there is such a one."""
    columns = tl.arange(0, CHOICES * BG)
    choices, groups = first + columns // BG, columns % BG
    inside = (choices < CHOSEN) & (groups < num_groups)
    if num_groups % BG != 0:
        groups = tl.minimum(groups, num_groups - 1)
    return tl.minimum(choices, CHOSEN - 1), groups, inside


@triton.jit
def _words_of_results(
    x, weights, token, first, CHOSEN: tl.constexpr, CHOICES: tl.constexpr,
    num_groups: tl.constexpr, BG: tl.constexpr, TABLE: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """The quantised results of some of a token's choices, then what multiplies their sums."""
    choices, groups, inside = _columns_of_choices(first, CHOSEN, CHOICES, num_groups, BG)
    pairs = token * CHOSEN + choices
    at = x + pairs * (32 * num_groups) + groups
    words = for_every_row(quantised_columns(at, inside, num_groups, TABLE))
    if OWN:
        share = tl.where(inside, by_place(weights, choices, CHOSEN), 0.0)
    else:
        share = tl.load(weights + choices, mask=inside, other=0.0).to(tl.float32)
    return words + (words[16].to(tl.float32, bitcast=True) * share[None, :],)  # noqa: RUF005


@triton.jit
def _words_of_shared(
    x, gate, token, num_groups: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
    TABLE: tl.constexpr,
):  # fmt: skip
    """As `_words_of_results` for the shared expert's result, whose weight is its gate's."""
    open_by = sigmoid(tl.load(gate).to(tl.float32))
    # In the threads that hold its weights, where several have the same groups.
    every = tl.zeros((BN, 1), tl.int32)
    at = x + token * (32 * num_groups) + groups_from(0, num_groups, BG)[None, :] + every
    inside = tl.arange(0, BG)[None, :] + every < num_groups
    words = quantised_columns(at, inside, num_groups, TABLE)
    return words + (words[16].to(tl.float32, bitcast=True) * open_by,)  # noqa: RUF005


@triton.jit
def _places_of_choices(
    experts, first, CHOSEN: tl.constexpr, CHOICES: tl.constexpr, HIDDEN: tl.constexpr,
    num_groups: tl.constexpr, BG: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """`_lines_of_choices` of some of a token's choices, for each word and for each group."""
    choices, _, _ = _columns_of_choices(first, CHOSEN, CHOICES, num_groups, BG)
    words = tl.minimum(first + tl.arange(0, CHOICES * BG * 4) // (BG * 4), CHOSEN - 1)
    return (
        _lines_of_choices(experts, words, CHOSEN, HIDDEN, BG * 4, OWN),
        _lines_of_choices(experts, choices, CHOSEN, HIDDEN, BG, OWN),
    )


@triton.jit
def _stored_of_choices(
    places, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, start,
    CHOSEN: tl.constexpr, CHOICES: tl.constexpr, HIDDEN: tl.constexpr, BN: tl.constexpr,
    num_groups: tl.constexpr, BG: tl.constexpr, CODES: tl.constexpr, HIGH: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    """What is stored of BN rows from `start` on of the experts at `_places_of_choices`."""
    _, groups, _ = _columns_of_choices(0, CHOSEN, CHOICES, num_groups, BG)
    first, rows = rows_from(start, HIDDEN, BN)
    lines = places[1] + first
    stored = _codes_of_choices(
        codes_ptr, two_ptr, high_ptr, places[0] + first, lines, rows, groups[None, :],
        num_groups, BN, CHOICES * BG, BG, CODES, HIGH,
    )  # fmt: skip
    scales_ptr, blocks_ptr = scales_from(scales_ptr, blocks_ptr, lines, num_groups, SCALE)
    return stored + load_scales(
        scales_ptr, blocks_ptr, rows[:, None], groups[None, :], num_groups, SCALE, BG
    )


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
    TURNS: tl.constexpr, NORM: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (token, TURNS times BN rows of the result): hidden += its experts' weighted sum.

    CHOICES experts are one product, all for more turns; with BLOCK, `experts` are a token's logits.
    """
    token, start = tl.program_id(0), tl.program_id(1) * (BN * TURNS)
    if s_num_groups != 0:
        first_row, rows = rows_from(start, HIDDEN, BN)
        shared = rows_of_weights(
            s_codes_ptr, s_two_ptr, s_high_ptr, s_scales_ptr, s_blocks_ptr, first_row, rows,
            s_num_groups, BN, S_BG, S_CODES, S_HIGH, S_SCALE,
        )  # fmt: skip
    # The choice is known: the kernel ahead let this one begin after it had waited for it.
    OWN: tl.constexpr = BLOCK != 0
    chosen, shares = _choices_of(experts, weights, token, EXPERTS, CHOSEN, NORM, BLOCK)
    places = _places_of_choices(chosen, 0, CHOSEN, CHOICES, HIDDEN, num_groups, BG, OWN)
    stored = _stored_of_choices(
        places, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, start,
        CHOSEN, CHOICES, HIDDEN, BN, num_groups, BG, CODES, HIGH, SCALE,
    )  # fmt: skip
    wait_for_inputs()
    if CHOICES >= CHOSEN:
        words = _words_of_results(x, shares, token, 0, CHOSEN, CHOICES, num_groups, BG, TABLE, OWN)
    if s_num_groups != 0:
        s_gate = gate + token * gate_stride
        s_words = _words_of_shared(s_x, s_gate, token, s_num_groups, BN, S_BG, S_TABLE)
    for turn in range(TURNS):
        outs = start + turn * BN + tl.arange(0, BN)
        at = hidden + token * HIDDEN + outs
        total = tl.load(at, mask=outs < HIDDEN, other=0.0).to(tl.float32)
        ahead = stored
        if TURNS > 1:
            # The rows of the next turn are on their way while these are multiplied.
            following = start + (turn + 1) * BN
            ahead = _stored_of_choices(
                places, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, following,
                CHOSEN, CHOICES, HIDDEN, BN, num_groups, BG, CODES, HIGH, SCALE,
            )  # fmt: skip
        sums = tl.zeros((BN, CHOICES * BG), tl.float32)
        for first in tl.static_range(0, CHOSEN, CHOICES):
            if first > 0:
                further = _places_of_choices(
                    chosen, first, CHOSEN, CHOICES, HIDDEN, num_groups, BG, OWN
                )
                stored = _stored_of_choices(
                    further, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, start,
                    CHOSEN, CHOICES, HIDDEN, BN, num_groups, BG, CODES, HIGH, SCALE,
                )  # fmt: skip
            if CHOICES < CHOSEN:
                words = _words_of_results(
                    x, shares, token, first, CHOSEN, CHOICES, num_groups, BG, TABLE, OWN
                )
            _, groups, _ = _columns_of_choices(first, CHOSEN, CHOICES, num_groups, BG)
            value = product_of_groups(
                words, stored, groups, BN, CHOICES * BG,
                CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, HAS_OFFSET, ASM,
            )  # fmt: skip
            sums += value * words[19]
        total += tl.sum(sums, 1)
        stored = ahead
        if s_num_groups != 0:
            value = product_of_groups(
                s_words, shared, groups_from(0, s_num_groups, S_BG), BN, S_BG,
                S_CODES, S_HIGH, S_ZERO, S_TABLE, S_SIGNED, S_SCALE, S_HAS_OFFSET, ASM,
            )  # fmt: skip
            total += tl.sum(value * s_words[19], 1)
            if TURNS > 1:
                first_row, rows = rows_from(start + (turn + 1) * BN, HIDDEN, BN)
                shared = rows_of_weights(
                    s_codes_ptr, s_two_ptr, s_high_ptr, s_scales_ptr, s_blocks_ptr, first_row,
                    rows, s_num_groups, BN, S_BG, S_CODES, S_HIGH, S_SCALE,
                )  # fmt: skip
        tl.store(at, total.to(hidden.dtype.element_ty), mask=outs < HIDDEN)
