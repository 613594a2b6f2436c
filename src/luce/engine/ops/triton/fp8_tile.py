"""FP8 matrix times many vectors: tiles become the type of x, exactly, and meet tensor cores.

A tile is 128 columns wide, as the blocks that share a scale are: its product is scaled once, in
float32. `dequantise_fp8` writes rounded weights for a vendor product where there are many rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from luce.engine.ops.triton.fp8_vector import (
    BLOCK_SCALES,
    ROW_SCALES,
    numbers_of,
    scale_lines,
)
from luce.engine.ops.triton.moe import tile_place
from luce.engine.ops.triton.numeric import dot, wait_for_inputs


@triton.jit
def tile_sum(
    x_at, weight, scales, rows, there, first, SIZE_IN: tl.constexpr, COLUMNS: tl.constexpr,
    SCALES: tl.constexpr, BAND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Rows of the weight times rows of x over COLUMNS columns from `first` on: f32 [BN, BM].

    Args:
        x_at: pointers to the first column of x's rows, [BM].
        there: which of these there are.
        rows: i64 [BN], all of them inside the matrix.
    """
    num_blocks: tl.constexpr = (SIZE_IN + 127) // 128
    scale_rows = scale_lines(rows, BAND, SCALES)
    lines = weight + rows[:, None] * SIZE_IN
    total = tl.zeros((BN, BM), tl.float32)
    scale = tl.full((BN,), 1.0, tl.float32)
    at = scales + scale_rows * num_blocks
    if SCALES == BLOCK_SCALES:
        scale = tl.load(at + tl.minimum(first // 128, num_blocks - 1))
    for step in range(first, first + COLUMNS, 128):
        columns = step + tl.arange(0, 128)
        if SIZE_IN % COLUMNS == 0 and COLUMNS % 128 == 0:
            stored = tl.load(lines + columns[None, :])
            value = tl.load(x_at[None, :] + columns[:, None], mask=there[None, :], other=0.0)
        else:
            inside = columns < SIZE_IN
            stored = tl.load(lines + columns[None, :], mask=inside[None, :], other=0)
            mask = there[None, :] & inside[:, None]
            value = tl.load(x_at[None, :] + columns[:, None], mask=mask, other=0.0)
        numbers = numbers_of(stored, SCALES).to(value.dtype)
        if SCALES == BLOCK_SCALES:
            # A step ahead of their use.
            after = tl.load(at + tl.minimum(step // 128 + 1, num_blocks - 1))
            total += dot(numbers, value, tl.zeros((BN, BM), tl.float32)) * scale[:, None]
            scale = after
        else:
            total = dot(numbers, value, total)
    if SCALES == ROW_SCALES:
        total *= tl.load(scales + scale_rows)[:, None]
    return total


@triton.jit(
    do_not_specialize=["num_tokens"],
    do_not_specialize_on_alignment=["bias", "residual", "scales"],
)
def fp8_tile_product(
    x, weight, scales, bias, residual, out, num_tokens, size_out, x_stride, out_stride,
    SCALES: tl.constexpr, BAND: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    SIZE_IN: tl.constexpr, SPLIT: tl.constexpr, SHARE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Program (rows of the weight, share of the columns, rows of x).

    With SPLIT > 1 `out` is float32 [SPLIT, T, N], to be added, and without bias and residual.
    """
    outs = tl.program_id(0) * BN + tl.arange(0, BN)
    share = tl.program_id(1)
    tokens = tl.program_id(2) * BM + tl.arange(0, BM)
    rows = tl.minimum(outs, size_out - 1).to(tl.int64)
    there = tokens < num_tokens
    wait_for_inputs()
    total = tile_sum(
        x + tokens.to(tl.int64) * x_stride, weight, scales, rows, there, share * SHARE,
        SIZE_IN, SHARE, SCALES, BAND, BM, BN,
    )  # fmt: skip
    places = tokens.to(tl.int64)[None, :] * out_stride + outs[:, None]
    mask = there[None, :] & (outs < size_out)[:, None]
    if SPLIT > 1:
        places += share.to(tl.int64) * num_tokens * out_stride
    else:
        if HAS_BIAS:
            there_too = outs < size_out
            total += tl.load(bias + outs, mask=there_too, other=0.0).to(tl.float32)[:, None]
        if HAS_RESIDUAL:
            total += tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + places, total.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["order", "starts", "scales"])
def fp8_expert_tiles(
    x, weight, scales, order, starts, weights, out, num_rows,
    E: tl.constexpr, CHOSEN: tl.constexpr, IS_LAST: tl.constexpr,
    SCALES: tl.constexpr, BAND: tl.constexpr, SIZE_IN: tl.constexpr,
    BLOCK_E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Program (rows of the weight, tile of one expert's pairs).

    Reads x by token and writes in sorted order; IS_LAST: reads x in sorted order and writes by
    pair, weighted.
    """
    wait_for_inputs()
    expert, first, end = tile_place(starts, tl.program_id(1), E, BLOCK_E, BM)
    if expert >= E:
        return
    places = first + tl.arange(0, BM)
    there = places < end
    pairs = tl.load(order + places, mask=there, other=0)
    sources = (places if IS_LAST else pairs // CHOSEN).to(tl.int64)
    outs = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = expert.to(tl.int64) * num_rows + tl.minimum(outs, num_rows - 1)
    columns: tl.constexpr = (SIZE_IN + 127) // 128 * 128
    total = tile_sum(
        x + sources * SIZE_IN, weight, scales, rows, there, 0, SIZE_IN, columns, SCALES, BAND, BM,
        BN,
    )  # fmt: skip
    if IS_LAST:
        share = tl.load(weights + pairs, mask=there, other=0.0).to(tl.float32)
        total *= share[None, :]
    targets = (pairs if IS_LAST else places).to(tl.int64)
    mask = there[None, :] & (outs < num_rows)[:, None]
    target = out + targets[None, :] * num_rows + outs[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["first_row", "num_rows"])
def dequantise_fp8(
    out, weight, scales, first_row, num_rows,
    SCALES: tl.constexpr, BAND: tl.constexpr, SIZE_IN: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows first_row .. first_row + num_rows of the matrix into out [num_rows, K]."""
    num_blocks: tl.constexpr = (SIZE_IN + 127) // 128
    index = tl.program_id(0) * BN + tl.arange(0, BN)
    columns = tl.program_id(1) * BK + tl.arange(0, BK)
    mask = (index < num_rows)[:, None] & (columns < SIZE_IN)[None, :]
    rows = (first_row + tl.minimum(index, num_rows - 1)).to(tl.int64)
    stored = tl.load(weight + rows[:, None] * SIZE_IN + columns[None, :], mask=mask, other=0)
    scale_rows = scale_lines(rows, BAND, SCALES)
    if SCALES == BLOCK_SCALES:
        blocks = tl.minimum(columns // 128, num_blocks - 1)
        scale = tl.load(scales + scale_rows[:, None] * num_blocks + blocks[None, :])
    else:
        scale = tl.load(scales + scale_rows)[:, None]
    values = numbers_of(stored, SCALES).to(tl.float32) * scale
    wait_for_inputs()
    at = index.to(tl.int64)[:, None] * SIZE_IN + columns[None, :]
    tl.store(out + at, values.to(out.dtype.element_ty), mask=mask)
