"""From a plan to the tensors of one step, for a GPU: one small copy, and the rest on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.device import upload, upload_into
from luce.engine.device_rows import DeviceRows
from luce.engine.inputs import InputBatch
from luce.engine.ops.attention import AttentionBatch, AttentionTensors
from luce.engine.ops.step_tables import StepTables
from luce.engine.ops.triton.lanes import begin_decode
from luce.engine.packed_ids import packed_ids
from luce.engine.step_ring import RingPlace
from luce.kv.spec import NULL_BLOCK
from luce.scheduler.plan import ScheduledSequence


def decode_lanes(
    items: Sequence[ScheduledSequence], block_tokens: int, count: int, padding_row: int
) -> npt.NDArray[np.int32]:
    """Lanes of decode rows: [count, 4] of row, position, block of the position, output index.

    Args:
        items: decode rows.
        block_tokens: P.
        count: lanes; those behind the items are padding, in the null block.
        padding_row: their row.
    """
    lanes = np.empty((count, 4), dtype=np.int32)
    lanes[len(items) :] = (padding_row, 0, NULL_BLOCK, 0)
    for column, values in enumerate(_lane_columns(items, block_tokens)):
        lanes[: len(items), column] = values
    return lanes


def _lane_columns(items: Sequence[ScheduledSequence], block_tokens: int) -> Iterator[list[int]]:
    yield [item.row for item in items]
    yield [item.start for item in items]
    yield [item.block_table[item.start // block_tokens] for item in items]
    yield [item.output_index for item in items]


def decode_batch(
    lanes: torch.Tensor,
    rows: DeviceRows,
    block_tokens: int,
    lookup: StepTables | None,
    ring: RingPlace,
) -> InputBatch:
    """A step of decode rows alone. Runs on the device throughout, so it can be captured.

    Args:
        lanes: i32 [n, 4], see `decode_lanes`; written from the ring.
        rows: tokens and tables; each lane's block enters its row's table.
        block_tokens: P.
        lookup: what is read of the model before its layers.
        ring: where lanes come from.
    """
    count = lanes.shape[0]
    begun = begin_decode(lanes, rows.params.tokens, rows.tables, block_tokens, lookup, ring)
    tensors = AttentionTensors(
        block_tables=rows.tables,
        rows=begun.rows,
        context_lens=begun.context_lens,
        query_starts=begun.context_lens,
        num_decode=count,
        max_queries=0,
        order=begun.order,
        pieces=begun.pieces,
    )
    return InputBatch(
        input_ids=begun.input_ids,
        positions=begun.positions,
        slot_mapping=begun.slot_mapping,
        attention=AttentionBatch((), (), (), block_tokens, tensors),
        logits_index=None,
        sampled_rows=(0,) * count,
        output_indices=(),
        rotary=begun.rotary,
        embedded=begun.hidden,
    )


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A step laid out on the device.

    Attributes:
        batch: what the model reads.
        lanes: i32 [sampled, 4] for sampling, see `decode_lanes`.
    """

    batch: InputBatch
    lanes: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepShape:
    """Room of a step of decode rows and prefill chunks; all its tensors' shapes follow from it.

    Attributes:
        decode: decode rows.
        chunks: prefill chunks.
        tokens: of all chunks.
        longest: tokens of the longest chunk.
        sampled: lines that are sampled.
    """

    decode: int
    chunks: int
    tokens: int
    longest: int
    sampled: int

    @classmethod
    def of(cls, items: Sequence[ScheduledSequence]) -> StepShape:
        """Just enough for a plan's items."""
        sizes = [len(item.token_ids) for item in items if item.token_ids]
        return cls(
            decode=len(items) - len(sizes),
            chunks=len(sizes),
            tokens=sum(sizes),
            longest=max(sizes, default=0),
            sampled=sum(item.sample for item in items),
        )

    def holds(self, other: StepShape) -> bool:
        """Whether a step of that shape has room in one of this."""
        return (
            self.decode >= other.decode
            and self.chunks >= other.chunks
            and self.tokens >= other.tokens
            and self.longest >= other.longest
            and self.sampled >= other.sampled
        )

    @property
    def lines(self) -> int:
        """Tokens of the whole step."""
        return self.decode + self.tokens

    @property
    def parts(self) -> list[int]:
        """Numbers of each part of what is uploaded; see `step_numbers`."""
        sequences = self.decode + self.chunks
        return [
            4 * self.decode, 4 * self.sampled, self.tokens, self.tokens, self.tokens,
            sequences + 1, sequences, sequences, self.sampled,
        ]  # fmt: skip


def step_numbers(
    items: Sequence[ScheduledSequence], shape: StepShape, block_tokens: int, padding_row: int
) -> npt.NDArray[np.int32]:
    """A step's numbers for the device, end to end: i32.

    Decode lanes, sampling lanes, the chunks' token ids, positions and places in the cache, where
    each sequence's tokens start, its row, its length, and the lines that are sampled. Items come in
    the order of the plan, decode rows first. What is left of the shape is padding: lanes of the
    padding row and tokens at the begin of the null block.
    """
    num_decode = next((i for i, item in enumerate(items) if item.token_ids), len(items))
    chunks = items[num_decode:]
    assert all(item.token_ids for item in chunks), "decode rows come first"
    numbers = np.zeros(sum(shape.parts), dtype=np.int32)
    stops = list(accumulate(shape.parts))
    decode, sampled, ids, positions, slots, starts, rows, lens, last = (
        numbers[first:stop] for first, stop in pairwise((0, *stops))
    )
    decode[:] = decode_lanes(items[:num_decode], block_tokens, shape.decode, padding_row).ravel()
    _fill_tokens(chunks, block_tokens, (ids, positions, slots))
    ends = list(accumulate((len(item.token_ids) for item in chunks), initial=shape.decode))
    starts[: shape.decode] = np.arange(shape.decode)
    starts[shape.decode :] = ends[-1]
    starts[shape.decode : shape.decode + len(ends)] = ends
    rows[:], lens[num_decode : shape.decode] = padding_row, 1
    for first, run in ((0, items[:num_decode]), (shape.decode, chunks)):
        rows[first : first + len(run)] = [item.row for item in run]
        lens[first : first + len(run)] = [item.start + item.num_tokens for item in run]
    lanes, lines = _sampling(items, num_decode, ends[1:])
    sampled.reshape(-1, 4)[len(lines) :] = padding_row, 0, NULL_BLOCK, 0
    sampled[: len(lanes)], last[: len(lines)] = lanes, lines
    return numbers


def step_of(
    numbers: torch.Tensor, shape: StepShape, rows: DeviceRows, block_tokens: int
) -> DeviceStep:
    """A step from its numbers on the device; runs there throughout, so it can be captured.

    Args:
        numbers: see `step_numbers`.
        shape: of it.
        rows: tokens and tables; the tables of the chunks' rows are there already.
        block_tokens: P.
    """
    decode, lanes, ids, positions, short_slots, starts, row_ids, lens, last = torch.split(
        numbers, shape.parts
    )
    slots, order, pieces = short_slots.long(), None, None
    if shape.decode:
        begun = begin_decode(decode.view(-1, 4), rows.params.tokens, rows.tables, block_tokens)
        ids = torch.cat((begun.input_ids, ids))
        positions = torch.cat((begun.positions, positions))
        slots = torch.cat((begun.slot_mapping, slots))
        order, pieces = begun.order, begun.pieces
    tensors = AttentionTensors(
        block_tables=rows.tables,
        rows=row_ids,
        context_lens=lens,
        query_starts=starts,
        num_decode=shape.decode,
        max_queries=shape.longest,
        order=order,
        pieces=pieces,
    )
    batch = InputBatch(
        input_ids=ids,
        positions=positions,
        slot_mapping=slots,
        attention=AttentionBatch((), (), (), block_tokens, tensors),
        logits_index=last,
        sampled_rows=(0,) * shape.sampled,
        output_indices=(),
    )
    return DeviceStep(batch, lanes.view(-1, 4))


def mixed_step(
    items: Sequence[ScheduledSequence], rows: DeviceRows, block_tokens: int
) -> DeviceStep:
    """A step of decode rows and prefill chunks: tokens end to end in the order of the plan."""
    upload_tables(items, rows)
    shape = StepShape.of(items)
    numbers = step_numbers(items, shape, block_tokens, rows.padding_row)
    return step_of(upload(numbers, rows.device), shape, rows, block_tokens)


def _fill_tokens(
    chunks: Sequence[ScheduledSequence],
    block_tokens: int,
    parts: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]],
) -> None:
    """Ids, positions and places in the cache of the chunks' tokens, end to end."""
    ids, positions, slots = parts
    packed = packed_ids([*chain.from_iterable(item.token_ids for item in chunks)])
    ids[: len(packed)] = packed
    first = 0
    for item in chunks:
        stop = first + len(item.token_ids)
        place = np.arange(item.start, item.start + stop - first, dtype=np.int32)
        blocks, within = np.divmod(place, block_tokens)
        positions[first:stop] = place
        slots[first:stop] = packed_ids(item.block_table)[blocks] * block_tokens + within
        first = stop


def upload_tables(items: Sequence[ScheduledSequence], rows: DeviceRows) -> None:
    """A chunk brings its whole table: a prefix that another row computed may have replaced blocks.

    A decode row's table only grows, by the block its lane brings.
    """
    chunks = [item for item in items if item.token_ids]
    if not chunks:
        return
    if len(chunks) == 1:
        table = packed_ids(chunks[0].block_table)
        upload_into(rows.tables[chunks[0].row, : len(table)], table)
        return
    width = max(len(item.block_table) for item in chunks)
    tables = np.full((len(chunks), width), NULL_BLOCK, dtype=np.int32)
    for line, item in enumerate(chunks):
        tables[line, : len(item.block_table)] = item.block_table
    index = upload(np.array([item.row for item in chunks]), rows.device)
    rows.tables[:, :width].index_copy_(0, index, upload(tables, rows.device))


def _sampling(
    items: Sequence[ScheduledSequence], num_decode: int, ends: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Lanes of the sampled items, four numbers each, and the line of each one's last token.

    Args:
        items: of the plan.
        num_decode: decode rows, whose lines are the first.
        ends: the line behind each chunk.
    """
    lanes: list[int] = []
    last: list[int] = []
    for index, item in enumerate(items):
        if item.sample:
            lanes += (item.row, item.start + item.num_tokens - 1, NULL_BLOCK, item.output_index)
            last.append(index if index < num_decode else ends[index - num_decode] - 1)
    return lanes, last
