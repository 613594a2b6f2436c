"""What some rows ask of a step beyond a token of their chain: constraints and log probabilities.

A step of rows that ask for nothing pays one look at each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from luce.engine.device import begin_readback
from luce.engine.hidden_taps import HiddenTaps, StepTap
from luce.engine.sampling.constraints import RowConstraints, StepConstraints
from luce.engine.sampling.logprobs import RawLogprobs
from luce.engine.sampling.masks import TokenMasks
from luce.protocol.sampling import TokenLogprobs
from luce.scheduler.plan import RowStart, ScheduledSequence


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What a step sampled, on the host; see `StepResult`."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()


class RowExtras:
    """What the rows ask for.

    Args:
        max_rows: rows.
        vocab_size: V.

    Attributes:
        constraints: the rows' grammars and least lengths.
    """

    def __init__(self, max_rows: int, vocab_size: int) -> None:
        self.constraints = RowConstraints(max_rows, vocab_size)
        self._logprobs: dict[int, int] = {}
        """Rows that want reports, with the count of likeliest tokens."""
        self._taps = HiddenTaps(max_rows)

    def start(self, starts: Sequence[RowStart]) -> None:
        """New occupants replace the former ones, of whom nothing stays."""
        self.constraints.start(starts)
        self._taps.start(starts)
        for start in starts:
            self._logprobs.pop(start.row, None)
            if start.sampling.logprobs is not None:
                self._logprobs[start.row] = start.sampling.logprobs

    def begin(self, items: Sequence[ScheduledSequence]) -> StepExtras:
        """Start on what a step's items ask for."""
        sampled = [item for item in items if item.sample]
        wanted: tuple[int | None, ...] = ()
        if self._logprobs:
            wanted = tuple(self._logprobs.get(item.row) for item in sampled)
        return StepExtras(wanted, self.constraints.begin(sampled), self._taps.begin(items))


class StepExtras:
    """What one step's sampled items ask for; its methods are called in their order here.

    Args:
        wanted: count of likeliest tokens for each, None where no report is wanted; empty: nobody
            wants one.
        constraints: what binds them.
        tap: reads prompts.
    """

    def __init__(
        self,
        wanted: tuple[int | None, ...],
        constraints: StepConstraints | None,
        tap: StepTap | None = None,
    ) -> None:
        self.tap = tap
        self._wanted = wanted
        self._constraints = constraints
        self._raw: RawLogprobs | None = None

    @property
    def reporting_lines(self) -> tuple[int, ...]:
        """Lines whose log probabilities are reported."""
        return tuple(line for line, count in enumerate(self._wanted) if count is not None)

    def look_at(self, logits: torch.Tensor) -> None:
        """Take from the raw logits, [n, V], what will be reported of them."""
        self._raw = RawLogprobs.of(logits, self._wanted)

    def masks(self) -> TokenMasks | None:
        """The step's masks; waits for them."""
        return self._constraints.masks() if self._constraints is not None else None

    def begin_readback(
        self,
        token_ids: torch.Tensor,
        begin: Callable[[torch.Tensor], Callable[[], list[int]]] = begin_readback,
    ) -> Callable[[], SampledTokens]:
        """Start copying the tokens and what is reported of them to the host.

        Args:
            token_ids: i32 or i64 [n], as chosen.
            begin: starts the copy of the tokens.

        Returns:
            A function that waits, and lets the constraints know. A later step of bound rows calls
            it before it samples; it gives the same each time.
        """
        read = begin(token_ids)
        read_packed = None if self._raw is None else begin_readback(self._raw.packed(token_ids))

        @cache
        def wait() -> SampledTokens:
            chosen = read()
            if self._constraints is not None:
                chosen = self._constraints.settle(chosen)
            if self._raw is None or read_packed is None:
                return SampledTokens(tuple(chosen))
            return SampledTokens(
                tuple(chosen), self._raw.unpacked(read_packed(), len(self._wanted))
            )

        if self._constraints is not None:
            self._constraints.read = wait
        return wait


NO_EXTRAS = StepExtras((), None)
"""Of a step in which nobody asks for anything and nobody reads its report."""
