"""Rows whose prompt is read: the residual stream behind some blocks, as a step computes it.

A prompt may come in several chunks. Sums are kept in double precision from chunk to chunk, so
the mean does not depend on how it was cut; it is rounded once, to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from luce.engine.device import begin_copy
from luce.protocol.sampling import HiddenRead, HiddenStates
from luce.scheduler.plan import RowStart, ScheduledSequence


@dataclass(slots=True)
class _Reading:
    """One row's prompt on its way.

    Attributes:
        read: what is wanted.
        num_tokens: of the prompt.
        sums: f64 [hidden] by block, of all tokens so far.
    """

    read: HiddenRead
    num_tokens: int
    sums: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _Chunk:
    """A row's tokens in a step.

    Attributes:
        start: its first token's line.
        stop: the line behind its last one.
        is_last: they complete the prompt.
        last: f32 [hidden] by block, of the last token.
    """

    row: int
    reading: _Reading
    start: int
    stop: int
    is_last: bool
    last: dict[int, torch.Tensor] = field(default_factory=dict)


class HiddenTaps:
    """The rows that are read.

    Args:
        max_rows: rows.
    """

    def __init__(self, max_rows: int) -> None:
        self._readings: list[_Reading | None] = [None] * max_rows

    def start(self, starts: Sequence[RowStart]) -> None:
        """New occupants replace the former ones, of whom nothing stays."""
        for start in starts:
            read = start.sampling.hidden
            self._readings[start.row] = None if read is None else _Reading(read, len(start.history))

    def begin(self, items: Sequence[ScheduledSequence]) -> StepTap | None:
        """The tap of a step; None if it reads nothing."""
        if not any(self._readings):
            return None
        chunks: list[_Chunk] = []
        line = 0
        for item in items:
            reading, stop = self._readings[item.row], line + item.num_tokens
            if reading is not None:
                is_last = item.start + item.num_tokens == reading.num_tokens
                chunks.append(_Chunk(item.row, reading, line, stop, is_last))
            line = stop
        return StepTap(chunks) if chunks else None


class StepTap:
    """Takes from one forward pass what is wanted of it.

    Args:
        chunks: which lines are whose.
    """

    def __init__(self, chunks: list[_Chunk]) -> None:
        self._chunks = chunks

    def take(self, layer: int, hidden: torch.Tensor) -> None:
        """See the residual stream behind a block: [T, hidden], which may be overwritten later."""
        for chunk in self._chunks:
            reading = chunk.reading
            if layer not in reading.read.layers:
                continue
            if chunk.is_last:
                chunk.last[layer] = hidden[chunk.stop - 1].float().clone()
            if reading.read.wants_mean:
                lines = hidden[chunk.start : chunk.stop]
                total = lines.sum(0, dtype=torch.float64)
                before = reading.sums.get(layer)
                reading.sums[layer] = total if before is None else before + total

    def finish(self) -> Callable[[], tuple[tuple[int, HiddenStates | None], ...]]:
        """Collect what is complete; the function returned waits for it. See `StepResult.hidden`."""
        done = [
            (chunk.row, [begin_copy(part) for part in _stacked(chunk)])
            for chunk in self._chunks
            if chunk.is_last
        ]
        return lambda: tuple((row, _states([read() for read in reads])) for row, reads in done)


def _stacked(chunk: _Chunk) -> list[torch.Tensor]:
    """Of the last token and, if wanted, of all: f32 [layers, hidden]."""
    reading, layers = chunk.reading, chunk.reading.read.layers
    last = torch.stack([chunk.last[layer] for layer in layers])
    if not reading.read.wants_mean:
        return [last]
    sums = torch.stack([reading.sums[layer] for layer in layers])
    return [last, (sums / reading.num_tokens).float()]


def _states(parts: list[torch.Tensor]) -> HiddenStates | None:
    """Of the last token and, if there is more, of all."""
    if not all(bool(part.isfinite().all()) for part in parts):
        return None
    last, *mean = [part.numpy().astype("<f4").tobytes() for part in parts]
    return HiddenStates(last, mean[0] if mean else b"")
