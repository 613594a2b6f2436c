"""Closes reasoning that has used up its budget, and knows a model that then only repeats itself.

It looks at output tokens alone, so it decides the same after a preemption, with a cached prefix
and in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from luce.protocol.sampling import ReasoningBudget

MIN_PERIOD = 12
MAX_PERIOD = 80
"""Lengths of a passage that, coming twice in a row after a forced close, shows that the model is
stuck. Source: the system we follow."""

_OTHER = -1
"""A symbol that no tag has: a token without any part of one."""
_BLANK = ord(" ")


class _Stage(Enum):
    WATCHING = "watching"
    CLOSING = "closing"
    CLOSED_BY_FORCE = "closed by force"
    CLOSED_BY_MODEL = "closed by model"


class _TagWatch:
    """Looks for one sequence of symbols in a stream of them.

    Args:
        tag: ids, or bytes; not found if empty.

    Attributes:
        num_matched: how many symbols of the tag the stream ends in; fewer than all.
    """

    def __init__(self, tag: Sequence[int]) -> None:
        self._tag = tag
        self._restart = [0] * len(tag)
        """Where to go on when the symbol at a place does not come: Knuth, Morris, Pratt."""
        for place in range(1, len(tag)):
            self._restart[place] = self._next(self._restart[place - 1], tag[place])
        self.num_matched = 0

    def feed(self, symbol: int) -> bool:
        """Take a symbol; whether it completes the tag."""
        self.num_matched = self._next(self.num_matched, symbol) if self._tag else 0
        is_found = bool(self._tag) and self.num_matched == len(self._tag)
        if is_found:
            self.num_matched = 0
        return is_found

    def _next(self, matched: int, symbol: int) -> int:
        while matched and self._tag[matched] != symbol:
            matched = self._restart[matched - 1]
        return matched + (self._tag[matched] == symbol)


class ReasoningWatch:
    """Follows one sequence's output against its budget; closes at most once.

    A model that is just writing the close itself when the budget ends is led through the rest of
    it, so that nothing is closed twice. Tags that are plain text are looked for in the bytes:
    a model may cut `</think>` into tokens together with what stands before and behind it.
    """

    def __init__(self, budget: ReasoningBudget) -> None:
        self._budget = budget
        self._texts = budget.texts
        self._stage = _Stage.WATCHING
        self._is_open = budget.starts_open
        self._opening = _TagWatch(budget.texts.opening if budget.texts else budget.open_ids)
        self._close = _TagWatch(budget.texts.close if budget.texts else budget.close_ids)
        self._output: list[int] = []
        self._since = 0
        """Output before this place has no part in the present stage."""
        self._pending: list[int] = []

    def needs_past(self, output_index: int) -> bool:
        """Whether what is chosen at this place of the output depends on all before it."""
        is_active = self._stage in (_Stage.WATCHING, _Stage.CLOSING)
        return is_active and output_index >= self._budget.max_tokens

    def forced_token(self) -> int | None:
        """The token that must come next, if any one must; asking changes nothing."""
        if self._stage is _Stage.WATCHING and self._is_due:
            self._pending = self._way_to_close()
            self._stage = _Stage.CLOSING
        return self._pending[0] if self._pending else None

    def observe(self, token_id: int) -> None:
        """Take the next token of the output."""
        self._output.append(token_id)
        if self._stage is _Stage.CLOSING:
            assert token_id == self._pending[0], f"{token_id} came, {self._pending[0]} was forced"
            del self._pending[0]
            if not self._pending:
                self._enter(_Stage.CLOSED_BY_FORCE)
        elif self._stage is _Stage.WATCHING:
            self._watch(token_id)

    @property
    def is_stuck(self) -> bool:
        """Whether the output after a forced close ends in a passage that came twice in a row."""
        if self._stage is not _Stage.CLOSED_BY_FORCE:
            return False
        output = self._output
        longest = min(MAX_PERIOD, (len(output) - self._since) // 2)
        return any(
            output[-1] == output[-1 - period] and output[-period:] == output[-2 * period : -period]
            for period in range(MIN_PERIOD, longest + 1)
        )

    @property
    def _is_due(self) -> bool:
        is_open = self._is_open and bool(self._budget.forced_ids)
        return is_open and len(self._output) >= self._budget.max_tokens

    def _watch(self, token_id: int) -> None:
        for symbol in self._symbols(token_id):
            seek = self._close.feed if self._is_open else self._seek_opening
            if seek(symbol):
                self._enter(_Stage.CLOSED_BY_MODEL)
                return

    def _symbols(self, token_id: int) -> Sequence[int]:
        if self._texts is None:
            return (token_id,)
        return self._texts.pieces.get(token_id, (_OTHER,))

    def _seek_opening(self, symbol: int) -> bool:
        """Look for the opening; whether none can come any more."""
        before = self._opening.num_matched
        self._is_open = self._opening.feed(symbol)
        if self._is_open or self._texts is None or not self._texts.comes_first:
            return False
        is_blank = symbol == _BLANK and before == 0
        return not is_blank and self._opening.num_matched != before + 1

    def _enter(self, stage: _Stage) -> None:
        self._stage = stage
        self._since = len(self._output)

    def _way_to_close(self) -> list[int]:
        written = self._close.num_matched
        if self._texts is None:
            return list(self._budget.close_ids[written:] if written else self._budget.forced_ids)
        return list(self._texts.half_ids[written - 1] if written else self._budget.forced_ids)
