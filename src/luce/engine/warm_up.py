"""Batches that touch every code path and shape class once, and no real block."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from luce.engine.inputs import InputBatch
from luce.engine.ops.attention import AttentionBatch
from luce.engine.options import EngineInfo
from luce.kv.spec import NULL_BLOCK, blocks_for
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan

_FEW_TOKENS = 8


def warm_up_batches(resolved: EngineInfo, chunk: int, device: torch.device) -> Iterator[InputBatch]:
    """A few tokens, the longest prefill chunk, then decode steps of one row and of all rows.

    The first step may be computed three times, to compare a recording: it is a short one.
    """
    chunk = min(chunk, resolved.max_ctx)
    few = min(_FEW_TOKENS, chunk)
    yield _batch((few,), (few,), resolved.block_tokens, device)
    yield _batch((chunk,), (chunk,), resolved.block_tokens, device)
    for rows in sorted({1, resolved.max_rows}):
        yield _batch((1,) * rows, (1,) * rows, resolved.block_tokens, device)


def one_token_batch(resolved: EngineInfo, device: torch.device) -> InputBatch:
    """The smallest step: shows whether the weights make numbers."""
    return _batch((1,), (1,), resolved.block_tokens, device)


def one_token_plan() -> StepPlan:
    """One greedy token after one prompt token: shows whether the weights make numbers."""
    start = RowStart(0, SamplingParams(max_tokens=1), 0, (0,), 1)
    item = ScheduledSequence(0, 0, (0,), (NULL_BLOCK,), sample=True)
    return StepPlan(0, (start,), (item,))


def _batch(
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    block_tokens: int,
    device: torch.device,
) -> InputBatch:
    starts = [0]
    for length in query_lens:
        starts.append(starts[-1] + length)
    positions = [position for length in query_lens for position in range(length)]
    tables = tuple((NULL_BLOCK,) * blocks_for(length, block_tokens) for length in context_lens)
    return InputBatch(
        input_ids=torch.zeros(starts[-1], dtype=torch.int32, device=device),
        positions=torch.tensor(positions, dtype=torch.int32, device=device),
        slot_mapping=torch.tensor([each % block_tokens for each in positions], device=device),
        attention=AttentionBatch(tuple(starts), context_lens, tables, block_tokens),
        logits_index=torch.tensor([stop - 1 for stop in starts[1:]], device=device),
        sampled_rows=tuple(range(len(query_lens))),
        output_indices=(0,) * len(query_lens),
        rows=tuple(range(len(query_lens))),
    )
