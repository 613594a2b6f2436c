"""The begin of a decode step, on the device: from lanes to the tensors of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from luce.engine.ops.decode_pieces import CHUNK_UNITS, UNIT_TOKENS, most_chunks
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, wait_for_inputs


@triton.jit
def _cut(tokens, CHUNK: tl.constexpr):
    """Units of a context, its chunks, and the units of one of them."""
    units = tl.cdiv(tokens, 16)
    size = tl.cdiv(units, tl.cdiv(units, CHUNK))
    return units, tl.cdiv(units, size), size


@direct
@triton.jit(
    do_not_specialize_on_alignment=[
        "input_ids", "rows", "positions", "context_lens", "slots", "order", "pieces"
    ]
)  # fmt: skip
def _begin_kernel(
    lanes, tokens, tables, input_ids, slots, rows, positions, context_lens, order,
    pieces, token_stride, table_stride,
    P: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # What it writes is read by kernels that do not wait for it, later in the step: decode attention
    # in CUDA C++ reads `pieces` and `tables` before its wait. So the next kernel must not begin
    # early: all behind it begin when this one is done.
    wait_for_inputs(False)
    lane = tl.program_id(0)
    row, position = tl.load(lanes + lane * 4), tl.load(lanes + lane * 4 + 1)
    block = tl.load(lanes + lane * 4 + 2)
    wide_row = row.to(tl.int64)
    tl.store(input_ids + lane, tl.load(tokens + wide_row * token_stride + position))
    tl.store(tables + wide_row * table_stride + position // P, block)
    tl.store(slots + lane, block.to(tl.int64) * P + position % P)
    tl.store(rows + lane, row)
    tl.store(positions + lane, position)
    tl.store(context_lens + lane, position + 1)
    count = tl.num_programs(0)
    rank = 0
    for first in range(0, count, BLOCK):
        others = first + tl.arange(0, BLOCK)
        theirs = tl.load(lanes + others * 4 + 1, mask=others < count, other=-1)
        is_ahead = (theirs > position) | ((theirs == position) & (others < lane))
        rank += tl.sum(is_ahead.to(tl.int32), 0)
    tl.store(order + rank, lane)
    tl.store(order + count + rank, row)
    tl.store(order + 2 * count + rank, position + 1)
    # See `decode_pieces`: where this lane's pieces stand.
    units, chunks, size = _cut(position + 1, CHUNK)
    each = tl.arange(0, BLOCK)
    first_piece, num_pieces = 0, 0
    for first in range(0, tl.num_programs(0), BLOCK):
        others = first + each
        is_there = others < tl.num_programs(0)
        theirs = tl.load(lanes + others * 4 + 1, mask=is_there, other=0)
        _, their_chunks, their_size = _cut(theirs + 1, CHUNK)
        their_chunks = tl.where(is_there, their_chunks, 0)
        is_ahead = (their_size > size) | ((their_size == size) & (others < lane))
        first_piece += tl.sum(tl.where(is_ahead, their_chunks, 0), 0)
        num_pieces += tl.sum(their_chunks, 0)
    for first in range(0, chunks, BLOCK):
        chunk = first + each
        piece, is_there = pieces + (1 + first_piece + chunk) * 4, chunk < chunks
        length = tl.minimum(units - chunk * size, size)
        tl.store(piece, lane | row << 16, mask=is_there)
        tl.store(piece + 1, position + 1, mask=is_there)
        tl.store(piece + 2, chunk * size | length << 16, mask=is_there)
        tl.store(piece + 3, chunk | chunks << 16, mask=is_there)
    if lane == 0:
        tl.store(pieces, num_pieces)


@dataclass(frozen=True, slots=True)
class BegunDecode:
    """What the lanes of a decode step stand for; n lanes.

    Attributes:
        input_ids: i32 [n].
        slot_mapping: i64 [n].
        rows: i32 [n].
        positions: i32 [n].
        context_lens: i32 [n]: position + 1.
        order: i32 [3, n]: the lanes by falling context, their rows, their contexts.
        pieces: i32 [1 + n * chunks, 4]: of their contexts, see `decode_pieces`.
    """

    input_ids: torch.Tensor
    slot_mapping: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    context_lens: torch.Tensor
    order: torch.Tensor
    pieces: torch.Tensor


def begin_decode(
    lanes: torch.Tensor, tokens: torch.Tensor, tables: torch.Tensor, block_tokens: int
) -> BegunDecode:
    """Look each lane's token up, and enter its block in its row's table.

    Args:
        lanes: i32 [n, 4]: row, position, block of the position, output index.
        tokens: i32 [R, C + 1]: tokens of every row by position.
        tables: i32 [R, M]; the entry of each lane's position is written.
        block_tokens: P.
    """
    count, device = lanes.shape[0], lanes.device
    input_ids, rows, positions, context_lens = torch.empty(
        4, count, dtype=torch.int32, device=device
    ).unbind(0)
    slots = torch.empty(count, dtype=torch.int64, device=device)
    order = torch.empty(3, count, dtype=torch.int32, device=device)
    most = count * most_chunks(tables.shape[1] * block_tokens)
    pieces = torch.empty(1 + most, 4, dtype=torch.int32, device=device)
    _begin_kernel[(count,)](
        lanes, tokens, tables, input_ids, slots, rows, positions, context_lens, order,
        pieces, tokens.stride(0), tables.stride(0), P=block_tokens, CHUNK=CHUNK_UNITS, BLOCK=256,
        num_warps=1, **LAUNCH,
    )  # fmt: skip
    return BegunDecode(input_ids, slots, rows, positions, context_lens, order, pieces)


assert UNIT_TOKENS == 16, "the kernel cuts units of 16 tokens"
