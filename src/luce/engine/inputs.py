"""From a plan and the rows to the tensors of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from luce.engine.ops.attention import AttentionBatch
from luce.engine.rows import RowState
from luce.scheduler.plan import ScheduledSequence


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One step's input. T tokens, B sequences of which some are sampled.

    Attributes:
        input_ids: i32 [T].
        positions: i32 [T].
        slot_mapping: i64 [T], block * P + offset.
        attention: who attends to what.
        logits_index: i64 [sampled]: tokens whose logits are wanted; None: all, in order.
        sampled_rows: their rows.
        output_indices: and the index of each in its row's output.
        rows: of each sequence; empty where the step was laid out on the device.
        rotary: f32 [T, 1, R/2, 2]: angles of the positions, where they are looked up already.
        embedded: [T, hidden]: embeddings of the tokens, likewise.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    attention: AttentionBatch
    logits_index: torch.Tensor | None
    sampled_rows: tuple[int, ...]
    output_indices: tuple[int, ...]
    rows: tuple[int, ...] = ()
    rotary: torch.Tensor | None = None
    embedded: torch.Tensor | None = None


def build_inputs(
    items: Sequence[ScheduledSequence], rows: RowState, block_tokens: int, device: torch.device
) -> InputBatch:
    """Lay the items' tokens end to end, in the order of the plan."""
    starts = [0]
    for item in items:
        starts.append(starts[-1] + item.num_tokens)
    positions = np.concatenate(
        [np.arange(item.start, item.start + item.num_tokens, dtype=np.int32) for item in items]
    )
    sampled = [index for index, item in enumerate(items) if item.sample]
    last_tokens = [starts[index + 1] - 1 for index in sampled]
    is_all = len(last_tokens) == starts[-1]
    return InputBatch(
        input_ids=_input_ids(items, starts, rows, device),
        positions=torch.from_numpy(positions).to(device),
        slot_mapping=torch.from_numpy(_slots(items, block_tokens)).to(device),
        attention=AttentionBatch(
            query_starts=tuple(starts),
            context_lens=tuple(item.start + item.num_tokens for item in items),
            block_tables=tuple(item.block_table for item in items),
            block_tokens=block_tokens,
        ),
        logits_index=None if is_all else torch.tensor(last_tokens, device=device),
        sampled_rows=tuple(items[index].row for index in sampled),
        output_indices=tuple(items[index].output_index for index in sampled),
        rows=tuple(item.row for item in items),
    )


def _input_ids(
    items: Sequence[ScheduledSequence],
    starts: list[int],
    rows: RowState,
    device: torch.device,
) -> torch.Tensor:
    """Given tokens come from the plan, the others from the rows, where they were sampled."""
    decoding = [index for index, item in enumerate(items) if not item.token_ids]
    last = rows.last_tokens([items[index].row for index in decoding]) if decoding else None
    if last is not None and len(decoding) == len(items):
        return last
    flat = [token for item in items for token in (item.token_ids or (0,))]
    ids = torch.tensor(flat, dtype=torch.int32).to(device)
    if last is not None:
        ids[torch.tensor([starts[index] for index in decoding], device=device)] = last
    return ids


def _slots(items: Sequence[ScheduledSequence], block_tokens: int) -> np.ndarray:
    """Flat KV position of every token: i64 [T]."""
    slots: list[int] = []
    for item in items:
        table = item.block_table
        slots.extend(
            table[position // block_tokens] * block_tokens + position % block_tokens
            for position in range(item.start, item.start + item.num_tokens)
        )
    return np.array(slots, dtype=np.int64)
