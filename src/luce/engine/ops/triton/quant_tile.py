"""Quantised matrix times many vectors: tiles become bfloat16 in registers and meet tensor cores.

`quant_tile_product` is for a few dozen rows: each program dequantises its own tiles, sums in
float32, and may take a share of the columns only, whose partial sums `add_partials` adds in a
fixed order. `dequantise` writes bfloat16 for a vendor product when there are many rows. Both
round a weight once, from float32; a row's result depends on no other row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from luce.engine.ops.triton.numeric import dot, wait_for_inputs
from luce.engine.ops.triton.quant_words import (
    decode_codes,
    decode_scales,
    load_codes,
    load_scales,
)


@triton.jit
def _small_byte(word, magic, byte: tl.constexpr, ASM: tl.constexpr):
    """128 + an unsigned byte below 128, in float32."""
    if ASM:
        source: tl.constexpr = (
            "prmt.b32 $0, $1, $2, 0x7044;",
            "prmt.b32 $0, $1, $2, 0x7144;",
            "prmt.b32 $0, $1, $2, 0x7244;",
            "prmt.b32 $0, $1, $2, 0x7344;",
        )[byte]
        return tl.inline_asm_elementwise(
            source, "=f,r,r", [word, magic], dtype=tl.float32, is_pure=True, pack=1
        )
    return ((word >> (8 * byte)) & 255).to(tl.float32) + 128.0


@triton.jit
def _signed_byte(word, magic, byte: tl.constexpr, ASM: tl.constexpr):
    """32768 + an unsigned byte, in float32."""
    if ASM:
        source: tl.constexpr = (
            "prmt.b32 $0, $1, $2, 0x7404;",
            "prmt.b32 $0, $1, $2, 0x7414;",
            "prmt.b32 $0, $1, $2, 0x7424;",
            "prmt.b32 $0, $1, $2, 0x7434;",
        )[byte]
        return tl.inline_asm_elementwise(
            source, "=f,r,r", [word, magic], dtype=tl.float32, is_pure=True, pack=1
        )
    return ((word >> (8 * byte)) & 255).to(tl.float32) + 32768.0


@triton.jit
def _value(word, magic, byte: tl.constexpr, scale, offset, SIGNED: tl.constexpr, ASM: tl.constexpr):
    code = _signed_byte(word, magic, byte, ASM) if SIGNED else _small_byte(word, magic, byte, ASM)
    return code * scale + offset


@triton.jit
def _four_words(
    w0,
    w1,
    w2,
    w3,
    magic,
    byte: tl.constexpr,
    s0,
    s1,
    o0,
    o1,
    SIGNED: tl.constexpr,
    ASM: tl.constexpr,
):
    """One byte of the four words of a group, [BN, BG] each → [BN, BG, 2, 2] in word order."""
    first = tl.join(
        _value(w0, magic, byte, s0, o0, SIGNED, ASM), _value(w2, magic, byte, s1, o1, SIGNED, ASM)
    )
    second = tl.join(
        _value(w1, magic, byte, s0, o0, SIGNED, ASM), _value(w3, magic, byte, s1, o1, SIGNED, ASM)
    )
    return tl.join(first, second)


@triton.jit
def _groups(first, num_groups: tl.constexpr, BG: tl.constexpr):
    """BG groups from the first one on, none of them beyond the last."""
    groups = first + tl.arange(0, BG)
    if num_groups % BG != 0:
        groups = tl.minimum(groups, num_groups - 1)
    return groups


@triton.jit
def _next_groups(first, num_groups: tl.constexpr, BG: tl.constexpr):
    """As `_groups`, where the first one may lie beyond the last."""
    if num_groups % BG == 0:
        return tl.minimum(first, num_groups - BG) + tl.arange(0, BG)
    return tl.minimum(first + tl.arange(0, BG), num_groups - 1)


@triton.jit
def tile_of_weights(
    codes_ptr, two_ptr, high_ptr, scale, block, top, rows, groups, first_group, opaque,
    num_groups: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """A tile of the matrix in float32, [BN, BG * 32] in column order."""
    stored = load_codes(
        codes_ptr, two_ptr, high_ptr, rows, groups, first_group, num_groups, BN, BG, CODES, HIGH
    )
    l0, l1, l2, l3, h0, h1, h2, h3 = decode_codes(stored, CODES, HIGH, TABLE, ASM)
    s0, s1, o0, o1 = decode_scales(scale, block, top, groups[None, :], SCALE)
    if SIGNED:
        # 0..255 instead of -128..127.
        l0, l1, l2, l3 = l0 ^ -2139062144, l1 ^ -2139062144, l2 ^ -2139062144, l3 ^ -2139062144
        h0, h1, h2, h3 = h0 ^ -2139062144, h1 ^ -2139062144, h2 ^ -2139062144, h3 ^ -2139062144
    bias: tl.constexpr = 32768.0 + 128.0 if SIGNED else 128.0 + ZERO
    # In a register of its own, which the compiler cannot know to hold a constant: it would else
    # copy the constant for every use, since `prmt` takes only one.
    magic = ((tl.arange(0, BG) + opaque) >> 31)[None, :] | (0x47000000 if SIGNED else 0x43000000)
    o0 -= s0 * bias
    o1 -= s1 * bias
    # Byte by byte of the words, and which columns of eight they are: quant_words.
    low0 = _four_words(l0, l1, l2, l3, magic, 0, s0, s1, o0, o1, SIGNED, ASM)
    low1 = _four_words(l0, l1, l2, l3, magic, 1, s0, s1, o0, o1, SIGNED, ASM)
    low2 = _four_words(l0, l1, l2, l3, magic, 2, s0, s1, o0, o1, SIGNED, ASM)
    low3 = _four_words(l0, l1, l2, l3, magic, 3, s0, s1, o0, o1, SIGNED, ASM)
    high0 = _four_words(h0, h1, h2, h3, magic, 0, s0, s1, o0, o1, SIGNED, ASM)
    high1 = _four_words(h0, h1, h2, h3, magic, 1, s0, s1, o0, o1, SIGNED, ASM)
    high2 = _four_words(h0, h1, h2, h3, magic, 2, s0, s1, o0, o1, SIGNED, ASM)
    high3 = _four_words(h0, h1, h2, h3, magic, 3, s0, s1, o0, o1, SIGNED, ASM)
    if TABLE != 0:
        c0, c2, c4, c6, c1, c3, c5, c7 = low0, low1, low2, low3, high0, high1, high2, high3
    else:
        c0, c4, c1, c5, c2, c6, c3, c7 = low0, low1, low2, low3, high0, high1, high2, high3
    even = tl.join(tl.join(c0, c4), tl.join(c2, c6))
    odd = tl.join(tl.join(c1, c5), tl.join(c3, c7))
    return tl.reshape(tl.join(even, odd), (BN, BG * 32))


@triton.jit(do_not_specialize_on_alignment=["two_ptr", "high_ptr", "scales_ptr", "blocks_ptr"])
def dequantise(
    out_ptr, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, first_row, num_rows,
    num_groups: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Rows first_row .. first_row + num_rows of the matrix into out [num_rows, K]."""
    row_index = tl.program_id(0) * BN + tl.arange(0, BN)
    first_group = tl.program_id(1) * BG
    rows = first_row + tl.minimum(row_index, num_rows - 1)
    groups = _groups(first_group, num_groups, BG)
    scale, block, top = load_scales(
        scales_ptr, blocks_ptr, rows[:, None], groups[None, :], num_groups, SCALE, BG
    )
    values = tile_of_weights(
        codes_ptr, two_ptr, high_ptr, scale, block, top, rows, groups, first_group, num_rows,
        num_groups, BN, BG, CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, ASM,
    )  # fmt: skip
    wait_for_inputs()
    columns = first_group * 32 + tl.arange(0, BG * 32)
    at = row_index[:, None] * (num_groups * 32) + columns[None, :]
    mask = (row_index[:, None] < num_rows) & (columns[None, :] < num_groups * 32)
    tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=["num_tokens"],
    do_not_specialize_on_alignment=["two_ptr", "high_ptr", "scales_ptr", "blocks_ptr"],
)
def quant_tile_product(
    x_ptr, y_ptr, residual_ptr, bias_ptr, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr,
    num_tokens, num_rows, x_stride, y_stride,
    num_groups: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
    SPLIT: tl.constexpr, SPLIT_GROUPS: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """y[t, n] = sum_k x[t, k] W[n, k] (+ bias) (+ residual), or float32 [SPLIT, T, N] partials."""
    row_index = tl.program_id(0) * BN + tl.arange(0, BN)
    share = tl.program_id(1)
    token_index = tl.program_id(2) * BM + tl.arange(0, BM)
    rows = tl.minimum(row_index, num_rows - 1)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    groups = _groups(share * SPLIT_GROUPS, num_groups, BG)
    scale, block, top = load_scales(
        scales_ptr, blocks_ptr, rows[:, None], groups[None, :], num_groups, SCALE, BG
    )
    wait_for_inputs()
    for step in range(0, SPLIT_GROUPS, BG):
        first_group = share * SPLIT_GROUPS + step
        # Scales are read a step ahead by hand: two bytes are too few for the asynchronous copies
        # that the compiler reads the words with.
        next_groups = _next_groups(first_group + BG, num_groups, BG)
        next_scale, next_block, next_top = load_scales(
            scales_ptr, blocks_ptr, rows[:, None], next_groups[None, :], num_groups, SCALE, BG
        )
        values = tile_of_weights(
            codes_ptr, two_ptr, high_ptr, scale, block, top, rows, groups, first_group, num_rows,
            num_groups, BN, BG, CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, ASM,
        ).to(x_ptr.dtype.element_ty)  # fmt: skip
        columns = first_group * 32 + tl.arange(0, BG * 32)
        x_at = x_ptr + token_index[:, None] * x_stride + columns[None, :]
        # Rows that are not there are not read: all would be one row, and its memory a hot spot.
        if num_groups % BG == 0 and num_groups == SPLIT * SPLIT_GROUPS:
            x = tl.load(x_at, mask=token_index[:, None] < num_tokens, other=0.0)
        else:
            inside = columns[None, :] < num_groups * 32
            x = tl.load(x_at, mask=(token_index[:, None] < num_tokens) & inside, other=0.0)
            # A scale read beyond the matrix may be infinite, and nothing times that is not 0.
            values = tl.where(columns[None, :] < num_groups * 32, values, 0.0)
        total = dot(x, tl.trans(values), total)
        scale, block, top, groups = next_scale, next_block, next_top, next_groups
    y_at = token_index[:, None] * y_stride + row_index[None, :]
    mask = (token_index[:, None] < num_tokens) & (row_index[None, :] < num_rows)
    if SPLIT > 1:
        y_at += share * num_tokens * y_stride
    else:
        if HAS_BIAS:
            bias = tl.load(bias_ptr + row_index, mask=row_index < num_rows, other=0.0)
            total += bias.to(tl.float32)[None, :]
        if HAS_RESIDUAL:
            total += tl.load(residual_ptr + y_at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + y_at, total.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["plane"])
def add_partials(
    partials_ptr, y_ptr, residual_ptr, bias_ptr, num_rows, y_stride, plane,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """y[t] = sum over the shares of partials[share, t] (+ bias) (+ residual[t]), in order."""
    wait_for_inputs()
    token = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < num_rows
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for share in tl.static_range(SPLIT):
        at = partials_ptr + share * plane + token * num_rows + index
        total += tl.load(at, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + index, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = residual_ptr + token * y_stride + index
        total += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + token * y_stride + index, total.to(y_ptr.dtype.element_ty), mask=mask)
