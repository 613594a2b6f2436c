"""From a plan to the tensors of one step, for a GPU: one small copy, and the rest on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.device import upload
from luce.engine.device_rows import DeviceRows
from luce.engine.inputs import InputBatch
from luce.engine.ops.attention import AttentionBatch, AttentionTensors
from luce.engine.ops.triton.lanes import begin_decode
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
    flat: list[int] = []
    for item in items:
        block = item.block_table[item.start // block_tokens]
        flat += (item.row, item.start, block, item.output_index)
    flat += (padding_row, 0, NULL_BLOCK, 0) * (count - len(items))
    return np.array(flat, dtype=np.int32).reshape(count, 4)


def decode_batch(lanes: torch.Tensor, rows: DeviceRows, block_tokens: int) -> InputBatch:
    """A step of decode rows alone. Runs on the device throughout, so it can be captured.

    Args:
        lanes: i32 [n, 4], see `decode_lanes`.
        rows: tokens and tables; each lane's block enters its row's table.
        block_tokens: P.
    """
    count = lanes.shape[0]
    begun = begin_decode(lanes, rows.params.tokens, rows.tables, block_tokens)
    tensors = AttentionTensors(
        block_tables=rows.tables,
        rows=begun.rows,
        context_lens=begun.context_lens,
        query_starts=begun.context_lens,
        num_decode=count,
        max_queries=0,
    )
    return InputBatch(
        input_ids=begun.input_ids,
        positions=begun.positions,
        slot_mapping=begun.slot_mapping,
        attention=AttentionBatch((), (), (), block_tokens, tensors),
        logits_index=None,
        sampled_rows=(0,) * count,
        output_indices=(),
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


def mixed_step(
    items: Sequence[ScheduledSequence], rows: DeviceRows, block_tokens: int
) -> DeviceStep:
    """A step of decode rows and prefill chunks: tokens end to end in the order of the plan."""
    num_decode = next((i for i, item in enumerate(items) if item.token_ids), len(items))
    chunks = items[num_decode:]
    assert all(item.token_ids for item in chunks), "decode rows come first"
    _upload_tables(chunks, rows)
    lanes = _sampling_lanes(items)
    tokens = _Tokens.of(chunks, block_tokens)
    starts = np.cumsum([0, *(item.num_tokens for item in items)], dtype=np.int32)
    row_ids = np.array([item.row for item in items], dtype=np.int32)
    lens = np.array([item.start + item.num_tokens for item in items], dtype=np.int32)
    sampled = np.array([i for i, item in enumerate(items) if item.sample], dtype=np.int64)
    last = (starts[sampled + 1] - 1).astype(np.int32)
    decode = decode_lanes(items[:num_decode], block_tokens, num_decode, rows.padding_row)
    parts = (
        decode.ravel(), lanes.ravel(), tokens.ids, tokens.positions, tokens.slots,
        starts, row_ids, lens, last,
    )  # fmt: skip
    flat = upload(np.concatenate(parts), rows.device)
    moved = torch.split(flat, [part.size for part in parts])
    ids, positions, slots = moved[2], moved[3], moved[4].long()
    if num_decode:
        begun = begin_decode(moved[0].view(-1, 4), rows.params.tokens, rows.tables, block_tokens)
        ids = torch.cat((begun.input_ids, ids))
        positions = torch.cat((begun.positions, positions))
        slots = torch.cat((begun.slot_mapping, slots))
    tensors = AttentionTensors(
        block_tables=rows.tables,
        rows=moved[6],
        context_lens=moved[7],
        query_starts=moved[5],
        num_decode=num_decode,
        max_queries=max((item.num_tokens for item in chunks), default=0),
    )
    batch = InputBatch(
        input_ids=ids,
        positions=positions,
        slot_mapping=slots,
        attention=AttentionBatch((), (), (), block_tokens, tensors),
        logits_index=moved[8],
        sampled_rows=tuple(items[index].row for index in sampled),
        output_indices=(),
    )
    return DeviceStep(batch, moved[1].view(-1, 4))


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Tokens of prefill chunks, end to end: i32 each."""

    ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]

    @classmethod
    def of(cls, chunks: Sequence[ScheduledSequence], block_tokens: int) -> _Tokens:
        empty = np.empty(0, dtype=np.int32)
        ids, positions, slots = [empty], [empty], [empty]
        for item in chunks:
            table = np.array(item.block_table, dtype=np.int32)
            place = np.arange(item.start, item.start + item.num_tokens, dtype=np.int32)
            ids.append(np.array(item.token_ids, dtype=np.int32))
            positions.append(place)
            slots.append(table[place // block_tokens] * block_tokens + place % block_tokens)
        return cls(np.concatenate(ids), np.concatenate(positions), np.concatenate(slots))


def _upload_tables(chunks: Sequence[ScheduledSequence], rows: DeviceRows) -> None:
    """A chunk brings its whole table: a prefix that another row computed may have replaced blocks.

    A decode row's table only grows, by the block its lane brings.
    """
    if not chunks:
        return
    width = max(len(item.block_table) for item in chunks)
    tables = np.full((len(chunks), width), NULL_BLOCK, dtype=np.int32)
    for line, item in enumerate(chunks):
        tables[line, : len(item.block_table)] = item.block_table
    index = upload(np.array([item.row for item in chunks]), rows.device)
    rows.tables[:, :width].index_copy_(0, index, upload(tables, rows.device))


def _sampling_lanes(items: Sequence[ScheduledSequence]) -> npt.NDArray[np.int32]:
    lanes = [
        (item.row, item.start + item.num_tokens - 1, NULL_BLOCK, item.output_index)
        for item in items
        if item.sample
    ]
    return np.array(lanes, dtype=np.int32).reshape(-1, 4)
