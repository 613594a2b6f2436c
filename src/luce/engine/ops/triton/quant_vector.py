"""Quantised matrix times few vectors: integer dot products of codes with 16-bit activations.

Bound by instructions rather than memory if codes become floats one by one, so they stay integers:
activations of a group of 32 are rounded to 16 bits of its largest one, and `dp2a` multiplies
two of them with two code bytes at a time. A sum over a group is exact, at most 32*32767*128;
scales come in float32, once a group. Rounding of the activations is 2^-16 of a group's largest
value, finer than bfloat16's own.

A thread owns one group of columns and BN rows of it: it reads 16 bytes of codes a row and
activations once for all its rows. Every row of x is computed alone, in the same order whatever
the others are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from luce.engine.ops.triton.numeric import wait_for_inputs
from luce.engine.ops.triton.quant_activations import (
    for_every_row,
    load_groups,
    load_quantised,
    quantised_words,
)
from luce.engine.ops.triton.quant_words import (
    codes_from,
    decode_codes,
    decode_scales,
    load_codes,
    load_scales,
    scales_from,
)

_DOT = tl.constexpr(
    tuple(
        f"dp2a.{half}.s32.{kind} $0, $1, $2, $3;"
        for kind in ("u32", "s32")
        for half in ("lo", "hi")
    )
)


@triton.jit
def _dot2(pair, codes, total, HIGH: tl.constexpr, SIGNED: tl.constexpr, ASM: tl.constexpr):
    """total + the two 16-bit halves of `pair` times bytes 0, 1 (or 2, 3) of `codes`."""
    if ASM:
        source: tl.constexpr = _DOT[SIGNED * 2 + HIGH]
        return tl.inline_asm_elementwise(
            source, "=r,r,r,r", [pair, codes, total], dtype=tl.int32, is_pure=True, pack=1
        )
    if HIGH:
        codes = codes >> 16
    first = codes & 255
    second = (codes >> 8) & 255
    if SIGNED:
        first = (first << 24) >> 24
        second = (second << 24) >> 24
    return total + ((pair << 16) >> 16) * first + (pair >> 16) * second


@triton.jit
def _dot8(
    x, low, high, totals, w: tl.constexpr, SIGNED: tl.constexpr, SHIFTED: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """totals + the eight columns of word w times its codes; SHIFTED high ones have their own."""
    total, shifted = totals
    total = _dot2(x[4 * w], low, total, False, SIGNED, ASM)
    total = _dot2(x[4 * w + 1], low, total, True, SIGNED, ASM)
    if SHIFTED:
        shifted = _dot2(x[4 * w + 2], high, shifted, False, SIGNED, ASM)
        shifted = _dot2(x[4 * w + 3], high, shifted, True, SIGNED, ASM)
    else:
        total = _dot2(x[4 * w + 2], high, total, False, SIGNED, ASM)
        total = _dot2(x[4 * w + 3], high, total, True, SIGNED, ASM)
    return total, shifted


@triton.jit
def _total(totals, SHIFTED: tl.constexpr):
    """Of both, in float32."""
    total, shifted = totals
    if SHIFTED:
        total += shifted >> 4
    return total.to(tl.float32)


@triton.jit
def dot_groups(
    x, codes, scales, BN: tl.constexpr, BG: tl.constexpr, ZERO: tl.constexpr,
    SIGNED: tl.constexpr, SHIFTED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Products of BN rows' groups with those of one row of x, [BN, BG], but for x's scales.

    `x` is of `for_every_row`, or [BN, BG] each; `codes` of `decode_codes`, `scales` of
    `decode_scales` with minima as they are.
    """
    l0, l1, l2, l3, h0, h1, h2, h3 = codes
    scale, scale2, offset, offset2 = scales
    sum1, sum2 = x[17], x[18]
    nothing = tl.zeros((BN, BG), dtype=tl.int32)
    part1 = nothing - ZERO * sum1, nothing
    part1 = _dot8(x, l0, h0, part1, 0, SIGNED, SHIFTED, ASM)
    part1 = _dot8(x, l1, h1, part1, 1, SIGNED, SHIFTED, ASM)
    if SCALE == "sixteen" or SCALE == "sixteen_offset" or SCALE == "sixteen_six":
        part2 = nothing - ZERO * sum2, nothing
        part2 = _dot8(x, l2, h2, part2, 2, SIGNED, SHIFTED, ASM)
        part2 = _dot8(x, l3, h3, part2, 3, SIGNED, SHIFTED, ASM)
        value = scale * _total(part1, SHIFTED) + scale2 * _total(part2, SHIFTED)
        if HAS_OFFSET:
            value -= offset * sum1.to(tl.float32)
            value -= offset2 * sum2.to(tl.float32)
    else:
        part1 = part1[0] - ZERO * sum2, part1[1]
        part1 = _dot8(x, l2, h2, part1, 2, SIGNED, SHIFTED, ASM)
        part1 = _dot8(x, l3, h3, part1, 3, SIGNED, SHIFTED, ASM)
        value = scale * _total(part1, SHIFTED)
        if SCALE == "byte_offset":
            value -= offset * (sum1 + sum2).to(tl.float32)
        elif HAS_OFFSET:
            value += offset * (sum1 + sum2).to(tl.float32)
    return value


@triton.jit
def dot_parts(
    x, codes, scales, BN: tl.constexpr, BG: tl.constexpr, ZERO: tl.constexpr,
    SIGNED: tl.constexpr, SHIFTED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr,
    ASM: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """As `dot_groups`, where both parts of x's groups have scales; which are multiplied too."""
    scale, scale2, offset, offset2 = scales
    nothing = tl.zeros((BN, BG), dtype=tl.int32)
    values = ()
    sums = ()
    for part in tl.static_range(PARTS):
        x_scale, x_sum = x[16 + part].to(tl.float32, bitcast=True), x[16 + PARTS + part]
        total = nothing - ZERO * x_sum, nothing
        for w in tl.static_range(part * (4 // PARTS), (part + 1) * (4 // PARTS)):
            total = _dot8(x, codes[w], codes[4 + w], total, w, SIGNED, SHIFTED, ASM)
        values = values + (_total(total, SHIFTED) * x_scale,)  # type: ignore[assignment]  # noqa: RUF005
        sums = sums + (x_sum.to(tl.float32) * x_scale,)  # type: ignore[assignment]  # noqa: RUF005
    value = scale * values[0] + scale2 * values[1]  # type: ignore[misc]
    least = offset * sums[0] + offset2 * sums[1]  # type: ignore[misc]
    if SCALE == "half_offset":
        value += least
    elif HAS_OFFSET:
        value -= least
    return value


@triton.jit
def _squares_of(squares, first, COUNT: tl.constexpr):
    """Sums of COUNT squares each."""
    total = tl.zeros(first.shape, tl.float32)
    for index in tl.static_range(COUNT):
        total += tl.load(squares + first * COUNT + index)
    return total


@triton.jit
def _products_of_parts(
    xq_ptr, squares_ptr, groups, codes, scales, eps, num_groups: tl.constexpr,
    BN: tl.constexpr, BG: tl.constexpr, ZERO: tl.constexpr, SIGNED: tl.constexpr,
    SHIFTED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr, ASM: tl.constexpr,
    PARTS: tl.constexpr, HEAD_GROUPS: tl.constexpr,
):  # fmt: skip
    """Products by groups of a row of `PartWords`."""
    words: tl.constexpr = 16 + 2 * PARTS
    x = for_every_row(load_quantised(xq_ptr, groups, num_groups, BG, words), words)
    value = dot_parts(
        x, codes, scales, BN, BG, ZERO, SIGNED, SHIFTED, SCALE, HAS_OFFSET, ASM, PARTS
    )
    heads = tl.minimum(groups, num_groups - 1) // HEAD_GROUPS
    squares = _squares_of(squares_ptr, heads, HEAD_GROUPS * PARTS)
    return value * tl.rsqrt(squares / (HEAD_GROUPS * 32) + eps)[None, :]


@triton.jit
def _products_of_groups(
    x_ptr, xq_ptr, groups, codes, scales, num_groups: tl.constexpr,
    BN: tl.constexpr, BG: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SHIFTED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr,
    ASM: tl.constexpr, IS_QUANTISED: tl.constexpr,
):  # fmt: skip
    """Products by groups of a row that is quantised, or is here."""
    if IS_QUANTISED:
        x = load_quantised(xq_ptr, groups, num_groups, BG)
    else:
        x = quantised_words(load_groups(x_ptr, groups, num_groups, BG), BG, TABLE)
    x = for_every_row(x)
    value = dot_groups(x, codes, scales, BN, BG, ZERO, SIGNED, SHIFTED, SCALE, HAS_OFFSET, ASM)
    return value * x[16].to(tl.float32, bitcast=True)


@triton.jit(
    do_not_specialize_on_alignment=["xq_ptr", "two_ptr", "high_ptr", "scales_ptr", "blocks_ptr"]
)
def quant_vector(
    x_ptr, xq_ptr, y_ptr, residual_ptr, bias_ptr,
    codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr,
    num_rows, x_stride, y_stride,
    num_groups: tl.constexpr, T: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, HAS_OFFSET: tl.constexpr,
    IS_QUANTISED: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr,
    ASM: tl.constexpr, experts_ptr=None, CHOSEN: tl.constexpr = 0, WHOLE: tl.constexpr = False,
    squares_ptr=None, eps=0.0, HEAD_GROUPS: tl.constexpr = 0, PARTS: tl.constexpr = 1,
):  # fmt: skip
    """y[t, n] = sum_k x[t, k] W[n, k] (+ bias[n]) (+ residual[t, n]) for T rows of x.

    With CHOSEN, W holds a matrix an expert, programs' second axis is pairs of a row of x, which
    CHOSEN pairs share, and an expert, that of `experts_ptr`, and T is 1. WHOLE says that BN
    divides the rows. With HEAD_GROUPS, x is of `PartWords`, `squares_ptr` too.
    """
    first_row = tl.program_id(0) * BN
    row_index = first_row + tl.arange(0, BN)
    # Counted from the first, so that addresses differ by constants.
    rows = tl.arange(0, BN)
    if not WHOLE:
        rows = tl.minimum(rows, num_rows - 1 - first_row)
    first_row = first_row.to(tl.int64)
    if CHOSEN != 0:
        wait_for_inputs()
        pair = tl.program_id(1).to(tl.int64)
        first_row += tl.load(experts_ptr + pair) * num_rows
        x_ptr, y_ptr = x_ptr + pair // CHOSEN * x_stride, y_ptr + pair * y_stride
        xq_ptr += pair // CHOSEN * (19 * num_groups)
    codes_ptr, two_ptr, high_ptr = codes_from(
        codes_ptr, two_ptr, high_ptr, first_row, num_groups, CODES, HIGH
    )
    scales_ptr, blocks_ptr = scales_from(scales_ptr, blocks_ptr, first_row, num_groups, SCALE)
    sums = ()
    nothing = tl.zeros((BN, BG), dtype=tl.float32)
    for _ in tl.static_range(T):
        sums = sums + (nothing,)  # type: ignore[assignment]  # noqa: RUF005
    old, there = tl.zeros((BN,), tl.float32), row_index < num_rows
    for first_group in range(0, num_groups, BG):
        group_index = first_group + tl.arange(0, BG)
        groups = group_index if num_groups % BG == 0 else tl.minimum(group_index, num_groups - 1)
        stored = load_codes(
            codes_ptr, two_ptr, high_ptr, rows, groups, first_group,
            num_groups, BN, BG, CODES, HIGH,
        )  # fmt: skip
        raw, raw_block, raw_top = load_scales(
            scales_ptr, blocks_ptr, rows[:, None], groups[None, :], num_groups, SCALE, BG
        )
        # The first weights are on their way by now.
        wait_for_inputs()
        if HAS_RESIDUAL and T == 1:
            # Asked for before it is needed.
            old = tl.load(residual_ptr + row_index, mask=there, other=0.0).to(tl.float32)
        SHIFTED: tl.constexpr = CODES == 4 and HIGH == 0 and TABLE == 0
        codes = decode_codes(stored, CODES, HIGH, TABLE, ASM, SHIFTED)
        scales = decode_scales(raw, raw_block, raw_top, groups[None, :], SCALE, True)
        updated = ()
        for t in tl.static_range(T):
            if HEAD_GROUPS != 0:
                value = _products_of_parts(
                    xq_ptr + t * ((16 + 2 * PARTS) * num_groups),
                    squares_ptr + t * (num_groups * PARTS), group_index, codes, scales, eps,
                    num_groups, BN, BG, ZERO, SIGNED, SHIFTED, SCALE, HAS_OFFSET, ASM, PARTS,
                    HEAD_GROUPS,
                )  # fmt: skip
            else:
                value = _products_of_groups(
                    x_ptr + t * x_stride, xq_ptr + t * (19 * num_groups), group_index,
                    codes, scales, num_groups, BN, BG, ZERO, TABLE, SIGNED, SHIFTED, SCALE,
                    HAS_OFFSET, ASM, IS_QUANTISED,
                )  # fmt: skip
            total = sums[t] + value
            updated = updated + (total,)  # type: ignore[assignment]  # noqa: RUF005
        sums = updated
    for t in tl.static_range(T):
        y, at = tl.sum(sums[t], axis=1), t * y_stride + row_index
        if HAS_BIAS:
            y += tl.load(bias_ptr + row_index, mask=there, other=0.0).to(tl.float32)
        if HAS_RESIDUAL and T == 1:
            y += old
        elif HAS_RESIDUAL:
            y += tl.load(residual_ptr + at, mask=there, other=0.0).to(tl.float32)
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=there)
