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


class _Stage(Enum):
    WATCHING = "watching"
    CLOSING = "closing"
    CLOSED_BY_FORCE = "closed by force"
    CLOSED_BY_MODEL = "closed by model"


class ReasoningWatch:
    """Follows one sequence's output against its budget; closes at most once.

    A model that is just writing the close itself when the budget ends is led through the rest of
    it, so that nothing is closed twice.
    """

    def __init__(self, budget: ReasoningBudget) -> None:
        self._budget = budget
        self._stage = _Stage.WATCHING
        self._is_open = budget.starts_open
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
            self._watch()

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

    def _watch(self) -> None:
        if self._is_open and self._ends_with(self._budget.close_ids):
            self._enter(_Stage.CLOSED_BY_MODEL)
        elif not self._is_open and self._ends_with(self._budget.open_ids):
            self._is_open = True
            self._since = len(self._output)

    def _enter(self, stage: _Stage) -> None:
        self._stage = stage
        self._since = len(self._output)

    def _way_to_close(self) -> list[int]:
        close_ids = self._budget.close_ids
        for written in range(len(close_ids) - 1, 0, -1):
            if self._ends_with(close_ids[:written]):
                return list(close_ids[written:])
        return list(self._budget.forced_ids)

    def _ends_with(self, token_ids: Sequence[int]) -> bool:
        """Whether the output of the present stage ends so; nothing is no end."""
        start = len(self._output) - len(token_ids)
        is_there = bool(token_ids) and start >= self._since
        return is_there and self._output[start:] == list(token_ids)
