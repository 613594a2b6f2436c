"""Rows of activations as `quant_vector` takes them: 16-bit integers, by groups of 32 columns.

Rounded to 16 bits of a group's largest one, which is finer than bfloat16's own: 2^-16 of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from luce.engine.ops.triton.numeric import wait_for_inputs

# 1.5 * 2^23: added to a float32 below 2^22 it leaves the nearest integer in the low bits.
_TO_INTEGER = tl.constexpr(12582912.0)


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
def store_run(words, x, first, num_groups: tl.constexpr, LENGTH: tl.constexpr, TABLE: tl.constexpr):
    """The words of columns of a row from `first` on, [LENGTH], as `PartWords` has them.

    Halves of words are written one by one, so that no column changes places.
    """
    parts: tl.constexpr = 32 // LENGTH
    largest = tl.max(tl.abs(x), axis=0)
    codes = _code(x, 32767.0 / tl.where(largest > 0.0, largest, 1.0))
    part = first % 32 // LENGTH
    words += first // 32
    column = tl.arange(0, LENGTH)
    # Of column 4a + 2b + c of eight, as in `quantise_groups`.
    if TABLE != 0:
        word, half = column % 2 * 2 + column % 8 // 4, column // 2 % 2
    else:
        word, half = column % 4, column % 8 // 4
    word += part * (LENGTH // 2) + column // 8 * 4
    halves = words.to(tl.pointer_type(tl.int16), bitcast=True)
    tl.store(halves + word * (2 * num_groups) + half, codes.to(tl.int16))
    scale = largest * (1.0 / 32767.0)
    tl.store(words + (16 + part) * num_groups, scale.to(tl.int32, bitcast=True))
    tl.store(words + (16 + parts + part) * num_groups, tl.sum(codes, 0))


@triton.jit
def for_every_row(x, WORDS: tl.constexpr = 19):
    """What `load_quantised` gave, [1, BG] each."""
    wide = ()
    for word in tl.static_range(WORDS):
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
def load_quantised(
    x_ptr, groups, num_groups: tl.constexpr, BG: tl.constexpr, WORDS: tl.constexpr = 19
):
    """BG groups of a row that `quantise_rows` made: sixteen words, scales, sums."""
    words = ()
    for word in tl.static_range(WORDS):
        at = x_ptr + word * num_groups + groups
        if num_groups % BG == 0:
            words = words + (tl.load(at),)  # type: ignore[assignment]  # noqa: RUF005
        else:
            word_values = tl.load(at, mask=groups < num_groups, other=0)
            words = words + (word_values,)  # type: ignore[assignment]  # noqa: RUF005
    return words
