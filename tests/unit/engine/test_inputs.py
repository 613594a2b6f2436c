"""From plans to tensors."""

from __future__ import annotations

import torch

from luce.engine.inputs import build_inputs
from luce.engine.rows import RowState
from luce.engine.sampling.sampler import Sampler
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence

CPU = torch.device("cpu")
GREEDY = SamplingParams(max_tokens=10)


def rows(*last_tokens: int) -> RowState:
    state = RowState(8, Sampler(8, 100, 64, CPU), CPU)
    state.start([RowStart(row, GREEDY, 0, (1, token), 2) for row, token in enumerate(last_tokens)])
    return state


def test_decode_rows_take_their_last_tokens() -> None:
    items = [
        ScheduledSequence(1, 5, (), (4, 9), sample=True, output_index=2),
        ScheduledSequence(0, 3, (), (2,), sample=True, output_index=7),
    ]
    batch = build_inputs(items, rows(70, 71), 4, CPU)
    assert batch.input_ids.tolist() == [71, 70]
    assert batch.input_ids.dtype == torch.int32
    assert batch.positions.tolist() == [5, 3]
    assert batch.positions.dtype == torch.int32
    assert batch.slot_mapping.tolist() == [9 * 4 + 1, 2 * 4 + 3]
    assert batch.slot_mapping.dtype == torch.int64
    assert batch.attention.query_starts == (0, 1, 2)
    assert batch.attention.context_lens == (6, 4)
    assert batch.attention.block_tables == ((4, 9), (2,))
    assert batch.logits_index is None
    assert batch.sampled_rows == (1, 0)
    assert batch.output_indices == (2, 7)


def test_mixed_step() -> None:
    items = [
        ScheduledSequence(2, 8, (), (5, 1, 3), sample=True, output_index=4),
        ScheduledSequence(0, 3, (11, 12, 13), (7, 6), sample=False),
        ScheduledSequence(1, 0, (21, 22), (2,), sample=True),
    ]
    batch = build_inputs(items, rows(70, 71, 72), 4, CPU)
    assert batch.input_ids.tolist() == [72, 11, 12, 13, 21, 22]
    assert batch.positions.tolist() == [8, 3, 4, 5, 0, 1]
    assert batch.slot_mapping.tolist() == [12, 31, 24, 25, 8, 9]
    assert batch.attention.query_starts == (0, 1, 4, 6)
    assert batch.attention.context_lens == (9, 6, 2)
    assert batch.logits_index is not None
    assert batch.logits_index.tolist() == [0, 5]
    assert batch.sampled_rows == (2, 1)
    assert batch.output_indices == (4, 0)


def test_chunk_without_sampling() -> None:
    items = [ScheduledSequence(0, 0, (1, 2, 3), (2,), sample=False)]
    batch = build_inputs(items, rows(70), 4, CPU)
    assert batch.sampled_rows == ()
    assert batch.input_ids.tolist() == [1, 2, 3]


def test_one_given_token_is_not_the_last_sampled() -> None:
    items = [ScheduledSequence(0, 4, (33,), (2, 3), sample=True)]
    assert build_inputs(items, rows(70), 4, CPU).input_ids.tolist() == [33]
