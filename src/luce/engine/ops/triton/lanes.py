"""The begin of a decode step, on the device: from lanes to the tensors of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from luce.engine.ops.decode_pieces import CHUNK_UNITS, UNIT_TOKENS, most_chunks
from luce.engine.ops.step_tables import StepTables
from luce.engine.ops.triton.lane_lookup import LaneLookup, look_up
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, let_next_begin, power_of_two, wait_for_inputs
from luce.engine.step_ring import RingPlace


@triton.jit
def _cut(tokens, CHUNK: tl.constexpr):
    """Units of a context, its chunks, and the units of one of them."""
    units = tl.cdiv(tokens, 16)
    size = tl.cdiv(units, tl.cdiv(units, CHUNK))
    return units, tl.cdiv(units, size), size


@triton.jit
def _ahead(theirs, others, lane, position, CHUNK: tl.constexpr):
    """Of some lanes by their positions, -1 where there is none: how many have a longer context,
    the chunks of those with larger ones, and all chunks.
    """
    is_longer = (theirs > position) | ((theirs == position) & (others < lane))
    _, _, size = _cut(position + 1, CHUNK)
    _, chunks, their_size = _cut(tl.maximum(theirs, 0) + 1, CHUNK)
    chunks = tl.where(theirs >= 0, chunks, 0)
    is_ahead = (their_size > size) | ((their_size == size) & (others < lane))
    ahead = tl.sum(tl.where(is_ahead, chunks, 0), 0)
    return tl.sum(is_longer.to(tl.int32), 0), ahead, tl.sum(chunks, 0)


@triton.jit
def _place_lane(
    source, theirs, lane, row, position, order, pieces, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):
    """A lane's place by falling context, and its pieces: see `decode_pieces`.

    `theirs` are the positions of the first lanes.
    """
    count, each = tl.num_programs(0), tl.arange(0, BLOCK)
    rank, first_piece, num_pieces = _ahead(theirs, each, lane, position, CHUNK)
    for first in range(BLOCK, count, BLOCK):
        others = first + each
        more = tl.load(source + others * 4 + 1, mask=others < count, other=-1)
        longer, ahead, chunks = _ahead(more, others, lane, position, CHUNK)
        rank, first_piece, num_pieces = rank + longer, first_piece + ahead, num_pieces + chunks
    tl.store(order + rank, lane)
    tl.store(order + count + rank, row)
    tl.store(order + 2 * count + rank, position + 1)
    units, chunks, size = _cut(position + 1, CHUNK)
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


@triton.jit
def _enter_lane(
    lane, row, position, block, tables, slots, rows, positions, context_lens, angles, rotary,
    table_stride, P: tl.constexpr, R: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Write a lane's numbers, its block into its row's table, and its angles."""
    tl.store(tables + row.to(tl.int64) * table_stride + position // P, block)
    tl.store(slots + lane, block.to(tl.int64) * P + position % P)
    tl.store(rows + lane, row)
    tl.store(positions + lane, position)
    tl.store(context_lens + lane, position + 1)
    if R:
        index = tl.arange(0, BLOCK_R)
        theirs = tl.load(angles + position.to(tl.int64) * R + index, mask=index < R, other=0.0)
        tl.store(rotary + lane * R + index, theirs, mask=index < R)


@direct
@triton.jit(
    do_not_specialize_on_alignment=[
        "input_ids", "rows", "positions", "context_lens", "slots", "order", "pieces",
        "two_ptr", "high_ptr", "scales_ptr", "blocks_ptr",
    ]
)  # fmt: skip
def _begin_kernel(
    lanes, tokens, tables, input_ids, slots, rows, positions, context_lens, order, pieces,
    ring, state, angles, rotary, hidden, table, two_ptr, high_ptr, scales_ptr, blocks_ptr,
    token_stride, table_stride, ring_stride,
    P: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, HAS_RING: tl.constexpr,
    R: tl.constexpr, BLOCK_R: tl.constexpr, LOOKUP: tl.constexpr, num_columns: tl.constexpr,
    EIGHTS: tl.constexpr, CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr,
    TABLE: tl.constexpr, SIGNED: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Program (lane, part): the first enters the lane, the others look up runs of columns.

    HAS_RING: lanes are those of the step whose turn it is; else they are there.
    """
    wait_for_inputs(False)
    lane, part = tl.program_id(0), tl.program_id(1)
    slot, source = 0, lanes
    if HAS_RING:
        slot = tl.load(state)
        source = ring + slot * ring_stride
    # All of them at once.
    others = tl.arange(0, BLOCK)
    row, position = tl.load(source + lane * 4), tl.load(source + lane * 4 + 1)
    block, output_index = tl.load(source + lane * 4 + 2), tl.load(source + lane * 4 + 3)
    theirs = tl.load(source + others * 4 + 1, mask=others < tl.num_programs(0), other=-1)
    token = tl.load(tokens + row.to(tl.int64) * token_stride + position)
    if part == 0:
        tl.store(input_ids + lane, token)
        _enter_lane(
            lane, row, position, block, tables, slots, rows, positions, context_lens, angles,
            rotary, table_stride, P, R, BLOCK_R,
        )  # fmt: skip
        _place_lane(source, theirs, lane, row, position, order, pieces, CHUNK, BLOCK)
        if HAS_RING:
            tl.store(lanes + lane * 4, row)
            tl.store(lanes + lane * 4 + 1, position)
            tl.store(lanes + lane * 4 + 2, block)
            tl.store(lanes + lane * 4 + 3, output_index)
            if lane == 0:
                tl.store(state + 1, slot)
        # What is written here other kernels read before they wait, later in the step: decode
        # attention in CUDA C++ reads `pieces` and `tables` so.
        let_next_begin(True)
    elif LOOKUP != "":
        let_next_begin(False)
        look_up(
            hidden + lane.to(tl.int64) * num_columns, token, part - 1, table, two_ptr, high_ptr,
            scales_ptr, blocks_ptr, num_columns, EIGHTS, LOOKUP, CODES, HIGH, ZERO, TABLE, SIGNED,
            SCALE,
        )  # fmt: skip


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
        rotary: f32 [n, 1, R/2, 2]: their angles; None: not looked up.
        hidden: [n, hidden]: their tokens' embeddings; None: not looked up.
    """

    input_ids: torch.Tensor
    slot_mapping: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    context_lens: torch.Tensor
    order: torch.Tensor
    pieces: torch.Tensor
    rotary: torch.Tensor | None = None
    hidden: torch.Tensor | None = None


def begin_decode(
    lanes: torch.Tensor,
    tokens: torch.Tensor,
    tables: torch.Tensor,
    block_tokens: int,
    lookup: StepTables | None = None,
    ring: RingPlace | None = None,
) -> BegunDecode:
    """Look each lane's token up, and enter its block in its row's table.

    Args:
        lanes: i32 [n, 4]: row, position, block of the position, output index.
        tokens: i32 [R, C + 1]: tokens of every row by position.
        tables: i32 [R, M]; the entry of each lane's position is written.
        block_tokens: P.
        lookup: what is read of angles and embeddings.
        ring: where lanes come from; None: they are there.
    """
    count, device = lanes.shape[0], lanes.device
    input_ids, rows, positions, context_lens = torch.empty(
        4, count, dtype=torch.int32, device=device
    ).unbind(0)
    slots = torch.empty(count, dtype=torch.int64, device=device)
    order = torch.empty(3, count, dtype=torch.int32, device=device)
    most = count * most_chunks(tables.shape[1] * block_tokens)
    pieces = torch.empty(1 + most, 4, dtype=torch.int32, device=device)
    found = LaneLookup.of(lookup, lanes)
    _begin_kernel[(count, 1 + found.parts)](
        lanes, tokens, tables, input_ids, slots, rows, positions, context_lens, order, pieces,
        *((lanes, lanes) if ring is None else (ring.lanes, ring.state)), *found.pointers,
        tokens.stride(0), tables.stride(0), 0 if ring is None else ring.lanes.stride(0),
        P=block_tokens, CHUNK=CHUNK_UNITS, BLOCK=min(256, power_of_two(count, 32)),
        HAS_RING=ring is not None, **found.constants,
        num_warps=1 if found.hidden is None else 4, **LAUNCH,
    )  # fmt: skip
    return BegunDecode(
        input_ids, slots, rows, positions, context_lens, order, pieces, found.rotary, found.hidden
    )


assert UNIT_TOKENS == 16, "the kernel cuts units of 16 tokens"
