"""Drives an engine with plans made by hand: no scheduler, no KV manager, no worker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from luce.engine.engine import Engine
from luce.engine.inputs import build_inputs
from luce.engine.options import EngineOptions
from luce.kv.spec import blocks_for
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan

GREEDY = SamplingParams(max_tokens=1 << 20)


def load_engine(path: Path, **options: Any) -> Engine:
    """An engine on one thread: the models are tiny and tests run side by side."""
    values: dict[str, Any] = {"threads": 1, "max_concurrency": 16, **options}
    return Engine.load(EngineOptions(path=path, **values), lambda *_: None)


@dataclass
class Request:
    """One sequence to generate.

    Attributes:
        arrival: step at which it shows up.
        leave_after: outputs after which it is dropped without notice, as after a cancel.
        preempt_at: outputs after which its blocks and row are taken and it starts again.
    """

    prompt: Sequence[int]
    max_tokens: int
    sampling: SamplingParams = GREEDY
    seed: int = 0
    arrival: int = 0
    leave_after: int | None = None
    preempt_at: int | None = None
    output: list[int] = field(default_factory=list)


@dataclass
class _Running:
    request: Request
    row: int
    blocks: list[int]
    computed: int = 0
    started: bool = False

    @property
    def tokens(self) -> list[int]:
        return [*self.request.prompt, *self.request.output]

    @property
    def is_decode(self) -> bool:
        return bool(self.request.output) and 0 < self.computed == len(self.tokens) - 1


class Driver:
    """Generates requests together: one prefill chunk each and all decode rows in every step.

    Args:
        engine: an engine; the driver owns all its blocks and rows.
        chunk: most prompt tokens of a request in a step.
        shuffle: seed of the order in which blocks are handed out; None: ascending.
    """

    def __init__(self, engine: Engine, chunk: int = 512, shuffle: int | None = None) -> None:
        self.engine = engine
        self.chunk = chunk
        self.num_steps = 0
        self._free_blocks = list(range(engine.resolved.num_blocks - 1, 0, -1))
        if shuffle is not None:
            random.Random(shuffle).shuffle(self._free_blocks)
        self._free_rows = list(range(engine.resolved.max_rows - 1, -1, -1))

    def run(self, requests: Sequence[Request]) -> list[list[int]]:
        """Outputs of all requests, in their order."""
        waiting = sorted(requests, key=lambda request: request.arrival)
        running: list[_Running] = []
        first_step = self.num_steps
        while waiting or running:
            now = self.num_steps - first_step
            while waiting and self._free_rows and waiting[0].arrival <= now:
                running.append(_Running(waiting.pop(0), self._free_rows.pop(), []))
            if running:
                self._step(running)
            else:
                self.num_steps += 1
            running = self._settle(running, waiting)
        return [request.output for request in requests]

    def _step(self, running: list[_Running]) -> None:
        # Decode rows first, as the plan's contract has it.
        order = sorted(running, key=lambda each: not each.is_decode)
        starts = [self._start(each) for each in order if not each.started]
        items = [self._item(each) for each in order]
        self.num_steps += 1
        plan = StepPlan(self.num_steps, tuple(starts), tuple(items))
        ids = iter(self.engine.step(plan).result().token_ids)
        for each, item in zip(order, items, strict=True):
            each.computed += item.num_tokens
            if item.sample:
                each.request.output.append(next(ids))
        assert next(ids, None) is None

    def _start(self, running: _Running) -> RowStart:
        request = running.request
        running.started = True
        return RowStart(
            running.row, request.sampling, request.seed, tuple(running.tokens), len(request.prompt)
        )

    def _item(self, running: _Running) -> ScheduledSequence:
        tokens = running.tokens
        start, stop = running.computed, min(running.computed + self.chunk, len(tokens))
        block_tokens = self.engine.resolved.block_tokens
        while len(running.blocks) < blocks_for(stop, block_tokens):
            running.blocks.append(self._free_blocks.pop())
        return ScheduledSequence(
            row=running.row,
            start=start,
            token_ids=() if running.is_decode else tuple(tokens[start:stop]),
            block_table=tuple(running.blocks),
            sample=stop == len(tokens),
            output_index=len(running.request.output),
        )

    def _settle(self, running: list[_Running], waiting: list[Request]) -> list[_Running]:
        remaining: list[_Running] = []
        for each in running:
            request, count = each.request, len(each.request.output)
            if count >= request.max_tokens or count == request.leave_after:
                self._release(each)
            elif count and count == request.preempt_at:
                self._release(each)
                request.preempt_at, request.arrival = None, 0
                waiting.insert(0, request)
            else:
                remaining.append(each)
        return remaining

    def _release(self, running: _Running) -> None:
        self._free_blocks.extend(reversed(running.blocks))
        self._free_rows.append(running.row)


def all_logits(
    engine: Engine, token_ids: Sequence[int], chunks: Sequence[int], blocks: Sequence[int]
) -> torch.Tensor:
    """Logits of every position, computed chunk by chunk: f32 [len(token_ids), V].

    Args:
        chunks: tokens of each step; they add up to all of them.
        blocks: block table, long enough for all.
    """
    assert sum(chunks) == len(token_ids)
    parts: list[torch.Tensor] = []
    start = 0
    for count in chunks:
        item = ScheduledSequence(
            0, start, tuple(token_ids[start : start + count]), tuple(blocks), sample=True
        )
        parts.append(_logits(engine, [item]))
        start += count
    return torch.cat(parts)


def mixed_logits(engine: Engine, items: Sequence[ScheduledSequence]) -> list[torch.Tensor]:
    """Logits of every token of one mixed step, by item."""
    logits = _logits(engine, items)
    return list(torch.split_with_sizes(logits, [item.num_tokens for item in items]))


def _logits(engine: Engine, items: Sequence[ScheduledSequence]) -> torch.Tensor:
    with torch.inference_mode():
        for item in items:
            if item.start == 0:
                start_row(engine, item.row)
        batch = build_inputs(
            items, engine._rows, engine.resolved.block_tokens, engine._device.torch
        )
        # Every token's logits, not the last ones' alone.
        logits = engine._runner.logits(replace(batch, logits_index=None, sampled_rows=(0,)))
        engine._runner.save_states(items)
    assert logits is not None
    return logits.clone()


def start_row(engine: Engine, row: int, checkpoint: int | None = None) -> None:
    """A new occupant of a row: its recurrent state is a checkpoint's or zero."""
    with torch.inference_mode():
        engine._runner.start_states([RowStart(row, GREEDY, 0, (0,), 1, checkpoint)])


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference as a share of the largest expected value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def random_ids(count: int, vocab_size: int, seed: int) -> list[int]:
    """Random token ids."""
    generator = random.Random(seed)
    return [generator.randrange(vocab_size) for _ in range(count)]
