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
from luce.engine.ops.triton.quant_words import (
    codes_from,
    decode_codes,
    decode_scales,
    load_codes,
    load_scales,
    scales_from,
)

# 1.5 * 2^23: added to a float32 below 2^22 it leaves the nearest integer in the low bits.
_TO_INTEGER = tl.constexpr(12582912.0)

_DOT = tl.constexpr(
    tuple(
        f"dp2a.{half}.s32.{kind} $0, $1, $2, $3;"
        for kind in ("u32", "s32")
        for half in ("lo", "hi")
    )
)


@triton.jit
def _split4(t, SIZE: tl.constexpr, INNER: tl.constexpr):
    """[SIZE, INNER, 4] → its four [SIZE, INNER]."""
    even, odd = tl.split(tl.reshape(t, (SIZE, INNER, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def load_groups(x_ptr, groups, num_groups: tl.constexpr, BG: tl.constexpr):
    """BG groups of a row of x in float32, [BG, 32]."""
    columns = tl.arange(0, 32)
    at = groups[:, None] * 32 + columns[None, :]
    if num_groups % BG == 0:
        x = tl.load(x_ptr + at).to(tl.float32)
    else:
        x = tl.load(x_ptr + at, mask=groups[:, None] < num_groups, other=0.0).to(tl.float32)
    return x


@triton.jit
def _code(x, inverse):
    """x * inverse, rounded."""
    return (x * inverse + _TO_INTEGER).to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def quantise_groups(x, BG: tl.constexpr, TABLE: tl.constexpr):
    """x [BG, 32] as 16-bit integers: packed [BG, 16], scales, sums of each half."""
    largest = tl.max(tl.abs(x), axis=1)
    scale = largest * (1.0 / 32767.0)
    inverse = 32767.0 / tl.where(largest > 0.0, largest, 1.0)
    codes = _code(x, inverse[:, None])
    sums = tl.sum(tl.reshape(codes, (BG, 2, 16)), axis=2)
    sum_first, sum_second = tl.split(sums)
    # Of column 4a + 2b + c of eight: pairs over a in the order (b, c), or, for the byte order
    # of a table lookup, pairs over b in the order (c, a).
    parts = tl.reshape(codes, (BG, 4, 2, 2, 2))
    if TABLE != 0:
        ordered = tl.permute(parts, (0, 1, 4, 2, 3))
    else:
        ordered = tl.permute(parts, (0, 1, 3, 4, 2))
    even, odd = tl.split(ordered)
    packed = (even & 0xFFFF) | (odd << 16)
    return tl.reshape(packed, (BG, 16)), scale, sum_first, sum_second


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
def for_every_row(x):
    """What `load_quantised` gave, [1, BG] each."""
    wide = ()
    for word in tl.static_range(19):
        wide = wide + (x[word][None, :],)  # type: ignore[assignment]  # noqa: RUF005
    return wide


@triton.jit
def _sixteen(packed, BG: tl.constexpr):
    """[BG, 16] → its sixteen [BG], as a tuple in order."""
    c0, c1, c2, c3 = _split4(packed, BG, 4)
    a0, a1, a2, a3 = _split_last(c0, BG)
    b0, b1, b2, b3 = _split_last(c1, BG)
    d0, d1, d2, d3 = _split_last(c2, BG)
    e0, e1, e2, e3 = _split_last(c3, BG)
    return (a0, b0, d0, e0, a1, b1, d1, e1, a2, b2, d2, e2, a3, b3, d3, e3)


@triton.jit
def _split_last(t, BG: tl.constexpr):
    even, odd = tl.split(tl.reshape(t, (BG, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def quantised_words(x, BG: tl.constexpr, TABLE: tl.constexpr):
    """x [BG, 32] as `load_quantised` gives it."""
    packed, scale, sum1, sum2 = quantise_groups(x, BG, TABLE)
    return _sixteen(packed, BG) + (scale.to(tl.int32, bitcast=True), sum1, sum2)  # noqa: RUF005


@triton.jit
def quantised_columns(x_ptr, inside, stride, TABLE: tl.constexpr):
    """Groups as `load_quantised` gives them, where each one's columns lie `stride` apart.

    So a thread reads and quantises its groups alone, and nothing crosses threads.

    Args:
        x_ptr: pointers to the groups' first columns.
        inside: which of them are there; the others are zeros.
        stride: between a group's columns.
        TABLE: as in `quantise_groups`.
    """
    columns = ()
    largest = tl.zeros(x_ptr.shape, tl.float32)
    for column in tl.static_range(32):
        x = tl.load(x_ptr + column * stride, mask=inside, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(x))
        columns = columns + (x,)  # type: ignore[assignment]  # noqa: RUF005
    inverse = 32767.0 / tl.where(largest > 0.0, largest, 1.0)
    words = ()
    sums = ()
    for half in tl.static_range(2):
        total = tl.zeros(x_ptr.shape, tl.int32)
        for index in tl.static_range(8):
            word, both = _two_columns(columns, inverse, half * 2 + index // 4, index % 4, TABLE)
            words = words + (word,)  # type: ignore[assignment]  # noqa: RUF005
            total += both
        sums = sums + (total,)  # type: ignore[assignment]  # noqa: RUF005
    scale = largest * (1.0 / 32767.0)
    return words + (scale.to(tl.int32, bitcast=True),) + sums  # noqa: RUF005


@triton.jit
def _two_columns(columns, inverse, eight: tl.constexpr, index: tl.constexpr, TABLE: tl.constexpr):
    """A word of eight columns, and the sum of both its numbers; which: see `quantise_groups`."""
    if TABLE != 0:
        first = _code(columns[eight * 8 + index % 2 * 4 + index // 2], inverse)
        second = _code(columns[eight * 8 + index % 2 * 4 + index // 2 + 2], inverse)
    else:
        first = _code(columns[eight * 8 + index], inverse)
        second = _code(columns[eight * 8 + index + 4], inverse)
    return (first & 0xFFFF) | (second << 16), first + second


@triton.jit
def store_quantised(out_ptr, groups, quantised, num_groups: tl.constexpr):
    """What `quantise_groups` gave of a row, int32 [19, K/32]: words, scale, sums."""
    packed, scale, sum1, sum2 = quantised
    mask = groups < num_groups
    out = out_ptr + groups
    words = tl.arange(0, 16)
    tl.store(out[:, None] + words[None, :] * num_groups, packed, mask=mask[:, None])
    tl.store(out + 16 * num_groups, scale.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out + 17 * num_groups, sum1, mask=mask)
    tl.store(out + 18 * num_groups, sum2, mask=mask)


@triton.jit
def quantise_rows(
    x_ptr, out_ptr, x_stride, num_groups: tl.constexpr, BG: tl.constexpr, TABLE: tl.constexpr
):
    """Rows of x as `quant_vector` wants them, int32 [T, 19, K/32]: words, scale, sums."""
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * BG + tl.arange(0, BG)
    x = load_groups(x_ptr + row * x_stride, groups, num_groups, BG)
    quantised = quantise_groups(x, BG, TABLE)
    store_quantised(out_ptr + row * (19 * num_groups), groups, quantised, num_groups)


@triton.jit
def load_quantised(x_ptr, groups, num_groups: tl.constexpr, BG: tl.constexpr):
    """BG groups of a row that `quantise_rows` made: sixteen words, scales, sums."""
    words = ()
    for word in tl.static_range(19):
        at = x_ptr + word * num_groups + groups
        if num_groups % BG == 0:
            words = words + (tl.load(at),)  # type: ignore[assignment]  # noqa: RUF005
        else:
            word_values = tl.load(at, mask=groups < num_groups, other=0)
            words = words + (word_values,)  # type: ignore[assignment]  # noqa: RUF005
    return words


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
):  # fmt: skip
    """y[t, n] = sum_k x[t, k] W[n, k] (+ bias[n]) (+ residual[t, n]) for T rows of x.

    With CHOSEN, W holds a matrix an expert, programs' second axis is pairs of a row of x, which
    CHOSEN pairs share, and an expert, that of `experts_ptr`, and T is 1. WHOLE says that BN
    divides the rows.
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
    old = tl.zeros((BN,), tl.float32)
    for first_group in range(0, num_groups, BG):
        group_index = first_group + tl.arange(0, BG)
        groups = group_index
        if num_groups % BG != 0:
            groups = tl.minimum(group_index, num_groups - 1)
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
            there = row_index < num_rows
            old = tl.load(residual_ptr + row_index, mask=there, other=0.0).to(tl.float32)
        SHIFTED: tl.constexpr = CODES == 4 and HIGH == 0 and TABLE == 0
        codes = decode_codes(stored, CODES, HIGH, TABLE, ASM, SHIFTED)
        scales = decode_scales(raw, raw_block, raw_top, groups[None, :], SCALE, True)
        updated = ()
        for t in tl.static_range(T):
            if IS_QUANTISED:
                x = load_quantised(xq_ptr + t * (19 * num_groups), group_index, num_groups, BG)
            else:
                wide = load_groups(x_ptr + t * x_stride, group_index, num_groups, BG)
                x = quantised_words(wide, BG, TABLE)
            x = for_every_row(x)
            value = dot_groups(
                x, codes, scales, BN, BG, ZERO, SIGNED, SHIFTED, SCALE, HAS_OFFSET, ASM
            )
            x_scale = x[16].to(tl.float32, bitcast=True)
            total = sums[t] + value * x_scale
            updated = updated + (total,)  # type: ignore[assignment]  # noqa: RUF005
        sums = updated
    for t in tl.static_range(T):
        y = tl.sum(sums[t], axis=1)
        mask = row_index < num_rows
        if HAS_BIAS:
            y += tl.load(bias_ptr + row_index, mask=mask, other=0.0).to(tl.float32)
        if HAS_RESIDUAL:
            if T == 1:
                y += old
            else:
                at = residual_ptr + t * y_stride + row_index
                y += tl.load(at, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + t * y_stride + row_index, y.to(y_ptr.dtype.element_ty), mask=mask)
