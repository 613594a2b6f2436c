"""What may bind a row beyond its parameters' chain: grammars, least lengths, forced tokens.

All three become masks of tokens, the one thing a sampler needs to know. They live on the host: a
matcher needs every token of its row. A step behind one under way that binds the same rows computes
first; before it samples, it waits for the other's tokens and only then for its own masks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from luce.engine.sampling.masks import TokenMasks, Words, has_any, mask_words, set_bits
from luce.errors import ApiError, InternalError
from luce.protocol.sampling import GrammarSpec
from luce.scheduler.plan import (
    GRAMMAR_ENDED_TOKEN,
    GRAMMAR_FAILED_TOKEN,
    RowStart,
    ScheduledSequence,
)

if TYPE_CHECKING:
    from luce.engine.sampling.grammar import GrammarCompiler, Matcher

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Occupant:
    """What binds a row's sequence for as long as it lives."""

    matcher: Matcher | None
    stop_ids: tuple[int, ...]
    min_tokens: int
    is_lost: bool = False
    """Its grammar could not be compiled, so it is to fail."""

    @property
    def may_bind(self) -> bool:
        """Whether it binds its row now or later, without a forced token."""
        is_short = self.min_tokens > 0 and bool(self.stop_ids)
        return self.matcher is not None or self.is_lost or is_short

    def accepts(self, token_id: int) -> bool:
        """Let the matcher go on by a token; a stop token is the end of all that it matches."""
        if self.matcher is None or token_id in self.stop_ids:
            return True
        return self.matcher.consume([token_id])


_FREE = _Occupant(None, (), 0)


@dataclass(slots=True)
class _Line:
    """One bound row in one step.

    Attributes:
        number: of its line among the step's logits.
        verdict: what stands in place of its token; None: the token itself.
    """

    number: int
    occupant: _Occupant
    output_index: int
    forced_token: int | None
    verdict: int | None = None


class RowConstraints:
    """The rows' grammars and least lengths.

    Belongs to the engine's thread, but for `use_vocabulary` and `check`: compiling takes long.

    Args:
        max_rows: rows.
        vocab_size: V.
    """

    def __init__(self, max_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._occupants = [_FREE] * max_rows
        self._bound: set[int] = set()
        """Rows whose occupant may bind them."""
        self._compiler: GrammarCompiler | None = None
        self._latest: StepConstraints | None = None
        # One thread hands the masks to the compiler's own while the model runs.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    def use_vocabulary(
        self, tokens: Sequence[bytes], control_ids: Sequence[int], end_ids: Sequence[int]
    ) -> None:
        """Learn the tokens; until then no grammar can be followed."""
        # The engine also runs where llguidance is not installed, without grammars.
        from luce.engine.sampling.grammar import GrammarCompiler

        size = self._vocab_size
        known = [*tokens[:size]]
        known += [b""] * (size - len(known))
        inside = [[i for i in ids if 0 <= i < size] for ids in (control_ids, end_ids)]
        self._compiler = GrammarCompiler(known, *inside)

    def check(self, grammar: GrammarSpec) -> GrammarSpec:
        """Compile a grammar.

        Returns:
            The same with what was compiled. A row that starts with this one compiles nothing,
            however often it starts again.

        Raises:
            InvalidGrammar: it cannot be followed.
            InternalError: no vocabulary has come.
        """
        if self._compiler is None:
            raise InternalError("a grammar came before the vocabulary it speaks of")
        return self._compiler.compiled(grammar)

    def start(self, starts: Sequence[RowStart]) -> None:
        """New occupants replace the former ones, of whom nothing stays.

        One whose grammar was not checked before and cannot be followed fails with its first
        token, alone.
        """
        for start in starts:
            self._occupants[start.row] = occupant = self._occupant(start)
            (self._bound.add if occupant.may_bind else self._bound.discard)(start.row)

    def begin(self, items: Sequence[ScheduledSequence]) -> StepConstraints | None:
        """Start on the masks of a step's sampled items; None: nothing binds them."""
        bound = self._bound
        if not any(item.row in bound or item.forced_token is not None for item in items):
            return None
        lines = [
            _Line(
                number,
                occupant,
                item.output_index,
                item.forced_token,
                GRAMMAR_FAILED_TOKEN if occupant.is_lost else None,
            )
            for number, item in enumerate(items)
            if _binds(occupant := self._occupants[item.row], item)
        ]
        if not lines:
            return None
        matchers = [line.occupant.matcher for line in lines if line.occupant.matcher is not None]
        latest, behind = self._latest, None
        if latest is not None and latest.holds_up(matchers):
            behind = latest
        end_ids = self._compiler.end_ids if self._compiler is not None else ()
        source = _MaskSource(lambda: self._thread.submit(self._fill, matchers), behind)
        if matchers and behind is None:
            source.start()
        step = StepConstraints(lines, source if matchers else None, end_ids, self._vocab_size)
        if matchers:
            self._latest = step
        return step

    def close(self) -> None:
        """End the thread; the constraints cannot be used any more."""
        self._thread.shutdown()

    def _occupant(self, start: RowStart) -> _Occupant:
        params = start.sampling
        if params.grammar is None:
            return _Occupant(None, params.stop_token_ids, params.min_tokens)
        try:
            if self._compiler is None:
                raise InternalError("a grammar came before the vocabulary it speaks of")
            matcher = self._compiler.matcher(params.grammar)
        except ApiError:
            log.exception("a grammar was not checked before its row started")
            return _Occupant(None, (), 0, is_lost=True)
        matcher.consume(start.history[start.num_prompt_tokens :])
        return _Occupant(matcher, params.stop_token_ids, params.min_tokens)

    def _fill(self, matchers: list[Matcher]) -> Words:
        assert self._compiler is not None, "matchers come from the compiler"
        words = np.empty((len(matchers), self._compiler.mask_words), dtype=np.int32)
        self._compiler.fill(matchers, words)
        return words


def _binds(occupant: _Occupant, item: ScheduledSequence) -> bool:
    is_short = item.output_index < occupant.min_tokens and bool(occupant.stop_ids)
    is_held = occupant.matcher is not None or occupant.is_lost
    return is_held or is_short or item.forced_token is not None


class _MaskSource:
    """Masks of a step's matchers, which may wait for an earlier step's tokens.

    Args:
        fill: starts on them.
        behind: that step.
    """

    def __init__(
        self, fill: Callable[[], Future[Words]], behind: StepConstraints | None = None
    ) -> None:
        self._fill = fill
        self._behind = behind
        self._filled: Future[Words] | None = None

    def start(self) -> None:
        """All tokens are known."""
        self._filled = self._fill()

    def words(self) -> Words:
        """i32 [matchers, mask words], in their order; waits for them."""
        if self._behind is not None:
            self._behind.wait()
            self._behind = None
        if self._filled is None:
            self.start()
        assert self._filled is not None, "started a line ago"
        return self._filled.result()


class StepConstraints:
    """What binds one step: the masks before it samples, the matchers' progress after it.

    Args:
        lines: the bound rows.
        source: of the masks of the matchers among them, in their order; None: there are none.
        end_ids: tokens by which the matchers say "complete".
        vocab_size: V.

    Attributes:
        read: waits for the step's tokens and has them settled; set once it has sampled.
    """

    def __init__(
        self,
        lines: list[_Line],
        source: _MaskSource | None,
        end_ids: tuple[int, ...],
        vocab_size: int,
    ) -> None:
        self._lines = lines
        self._source = source
        self._end_ids = end_ids
        self._vocab_size = vocab_size
        self._is_settled = False
        self.read: Callable[[], object] | None = None

    def holds_up(self, matchers: Sequence[Matcher]) -> bool:
        """Whether this step is still under way with one of these."""
        if self._is_settled or self.read is None:
            return False
        ours = {id(line.occupant.matcher) for line in self._lines}
        return any(id(matcher) in ours for matcher in matchers)

    def wait(self) -> None:
        """Until its matchers have gone on by what was chosen.

        Raises:
            RuntimeError: the device failed.
        """
        if not self._is_settled and self.read is not None:
            self.read()

    def masks(self) -> TokenMasks:
        """The masks, once; waits for them."""
        words = np.full((len(self._lines), mask_words(self._vocab_size)), -1, dtype=np.int32)
        filled = iter(self._source.words()) if self._source is not None else iter(())
        for line, mask in zip(self._lines, words, strict=True):
            if line.occupant.matcher is not None:
                self._follow(line, line.occupant.matcher, next(filled), mask)
            if line.verdict is None:
                _bar_stops(line, mask)
                _force(line, mask)
        return TokenMasks(tuple(line.number for line in self._lines), words)

    def settle(self, token_ids: Sequence[int]) -> list[int]:
        """Let the matchers go on by what was chosen.

        Args:
            token_ids: of all sampled items; negative for one that failed.

        Returns:
            The same, with a verdict in place of the tokens of rows that cannot go on.
        """
        self._is_settled = True
        settled = list(token_ids)
        for line in self._lines:
            token_id, occupant = settled[line.number], line.occupant
            if token_id < 0:
                continue
            if line.verdict is not None:
                settled[line.number] = line.verdict
            elif not occupant.accepts(token_id):
                settled[line.number] = GRAMMAR_FAILED_TOKEN
        return settled

    def _follow(self, line: _Line, matcher: Matcher, allowed: Words, mask: Words) -> None:
        """Turn what a matcher allows into a mask, or into a verdict."""
        if matcher.is_broken:
            line.verdict = GRAMMAR_FAILED_TOKEN
            return
        is_complete = has_any(allowed, self._end_ids)
        set_bits(allowed, self._end_ids, allowed=False)
        if is_complete:
            set_bits(allowed, line.occupant.stop_ids, allowed=True)
        if allowed.any():
            mask[:] = allowed[: len(mask)]
        elif line.forced_token is None:
            line.verdict = GRAMMAR_ENDED_TOKEN


def _bar_stops(line: _Line, mask: Words) -> None:
    """Bar the stop tokens of a line that is too short, unless a grammar wants it to end."""
    if line.output_index >= line.occupant.min_tokens:
        return
    barred = mask.copy()
    set_bits(barred, line.occupant.stop_ids, allowed=False)
    if barred.any():
        mask[:] = barred


def _force(line: _Line, mask: Words) -> None:
    if line.forced_token is not None:
        mask[:] = 0
        set_bits(mask, (line.forced_token,), allowed=True)
