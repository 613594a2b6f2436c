"""FP8 matrix times few vectors: numbers become float32 in registers, sums are float32."""

from __future__ import annotations

import triton
import triton.language as tl

from luce.engine.device import has_fp8_conversion
from luce.engine.ops.triton.numeric import INTERPRETED, wait_for_inputs

NO_SCALES, ROW_SCALES, BLOCK_SCALES = (tl.constexpr(kind) for kind in range(3))
"""What stands beside a matrix: nothing, and it is a plain one; a scale a row; one for 128x128."""
CONVERTS = tl.constexpr(not INTERPRETED.value and has_fp8_conversion())
"""The processor turns e4m3 into float16 itself."""


@triton.jit
def _e4m3_by_bits(codes):
    """The same by the bits, for processors that do not convert."""
    wide = codes.to(tl.uint16)
    # Exponents of float16 count from 8 lower; what is subnormal here is so there.
    bits = ((wide & 0x7F) << 7) | ((wide & 0x80) << 8)
    values = bits.to(tl.float16, bitcast=True) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), values).to(tl.float16)


@triton.jit
def e4m3(codes):
    """Bytes as the e4m3 numbers they are, in float16, which holds all of them exactly."""
    if CONVERTS:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    return _e4m3_by_bits(codes)


@triton.jit
def numbers_of(stored, SCALES: tl.constexpr):
    """A tile of a matrix as it is stored, without its scales."""
    return stored if SCALES == NO_SCALES else e4m3(stored)


@triton.jit
def scale_lines(rows, BAND: tl.constexpr, SCALES: tl.constexpr):
    """The rows of the scales that belong to rows of a matrix whose blocks begin anew each BAND."""
    if SCALES == BLOCK_SCALES:
        return rows // BAND * ((BAND + 127) // 128) + rows % BAND // 128
    return rows


@triton.jit
def _stored_tile(base, there, first, SIZE: tl.constexpr, G: tl.constexpr):
    """Columns first .. first + 128 G of some rows, [G, .., .., 128].

    Eight of them a thread, whatever their type, and blocks before all else: so tiles of weights and
    of x lie alike in the threads, and none goes through shared memory.
    """
    column = tl.max_contiguous(tl.arange(0, 128), 8)
    columns = first + tl.arange(0, G)[:, None, None, None] * 128 + column[None, None, None, :]
    if SIZE % (G * 128) == 0:
        return tl.load(base + columns, mask=there, other=0)
    return tl.load(base + columns, mask=there & (columns < SIZE), other=0)


@triton.jit(
    do_not_specialize=["num_tokens"],
    do_not_specialize_on_alignment=["bias", "residual", "experts", "scales"],
)
def fp8_vector(
    x, weight, scales, bias, residual, experts, out, num_tokens, size_out, x_stride, out_stride,
    SCALES: tl.constexpr, BAND: tl.constexpr, CHOSEN: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    TOKENS: tl.constexpr, SIZE_IN: tl.constexpr, BN: tl.constexpr, G: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Program: BN rows of the weight against all rows of x; axes [block, token, row, column].

    With CHOSEN programs are pairs of token and expert on a second axis: each multiplies one row of
    x by its expert's rows of the weight, of which an expert has `size_out`.
    """
    tokens = tl.arange(0, TOKENS)
    outs = tl.program_id(0) * BN + tl.arange(0, BN)
    first_row = tl.zeros((), tl.int64)
    if CHOSEN:
        wait_for_inputs()
        pair = tl.program_id(1).to(tl.int64)
        first_row = tl.load(experts + pair).to(tl.int64) * size_out
        x += pair // CHOSEN * x_stride
        out += pair * out_stride
    rows = first_row + tl.minimum(outs, size_out - 1)
    lines = weight + rows[None, None, :, None] * SIZE_IN
    every = tl.full((1, 1, 1, 1), 1, tl.int1)
    ahead = ()
    for i in tl.static_range(AHEAD):
        tile = _stored_tile(lines, every, i * G * 128, SIZE_IN, G)
        ahead = ahead + (tile,)  # type: ignore[assignment]  # noqa: RUF005
    scale_rows = scale_lines(rows, BAND, SCALES)
    if SCALES == BLOCK_SCALES and BAND % BN == 0 and 128 % BN == 0:
        # All of them are in one block.
        scale_rows = scale_lines(first_row + tl.program_id(0) * BN + tl.arange(0, 1), BAND, SCALES)
    if not CHOSEN:
        wait_for_inputs()
    real = (tokens < num_tokens)[None, :, None, None]
    sources = x + tokens[None, :, None, None] * x_stride
    total = tl.zeros((G, TOKENS, BN, 16), tl.float32)
    num_blocks: tl.constexpr = (SIZE_IN + 127) // 128
    for i in tl.static_range((SIZE_IN + G * 128 - 1) // (G * 128)):
        if i < AHEAD:
            tile = ahead[i]
        else:
            tile = _stored_tile(lines, every, i * G * 128, SIZE_IN, G)
        value = _stored_tile(sources, real, i * G * 128, SIZE_IN, G).to(tl.float32)
        if SCALES == BLOCK_SCALES:
            blocks = tl.minimum(i * G + tl.arange(0, G), num_blocks - 1)[:, None, None, None]
            value *= tl.load(scales + scale_rows[None, None, :, None] * num_blocks + blocks)
        product = numbers_of(tile, SCALES).to(tl.float32) * value
        # A thread's own eight columns: one sum to keep instead of eight.
        total += tl.sum(tl.reshape(product, (G, TOKENS, BN, 16, 8)), 4)
    result = tl.sum(tl.sum(total, 3), 0)
    there = outs < size_out
    if SCALES == ROW_SCALES:
        result *= tl.load(scales + scale_rows)[None, :]
    if HAS_BIAS:
        result += tl.load(bias + outs, mask=there, other=0.0).to(tl.float32)[None, :]
    places = tokens[:, None] * out_stride + outs[None, :]
    mask = (tokens < num_tokens)[:, None] & there[None, :]
    if HAS_RESIDUAL:
        result += tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + places, result.to(out.dtype.element_ty), mask=mask)
