"""The last decisions, with what they were made from: for people who wonder why."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LENGTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision.

    Attributes:
        at_s: monotonic seconds.
        model: whom it is about.
        verdict: load, make_room, wait, refuse, failed, ready.
        reason: why, as a sentence.
        victims: who gives way, with what each keeps.
        inputs: state, in-flight and waiting requests of every model.
        available: bytes of each device that nothing has been promised; None: nobody knows. Empty
            where bytes do not decide.
    """

    at_s: float
    model: str
    verdict: str
    reason: str = ""
    victims: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    available: Mapping[str, int | None] = field(default_factory=dict)


class DecisionHistory:
    """A ring of `LENGTH` decisions; one that repeats the last about a model is not kept again."""

    def __init__(self) -> None:
        self._ring: deque[DecisionRecord] = deque(maxlen=LENGTH)
        self._last: dict[str, tuple[str, str]] = {}

    def add(self, record: DecisionRecord) -> None:
        """Keep a decision."""
        key = (record.verdict, record.reason)
        if self._last.get(record.model) == key and record.verdict == "wait":
            return
        self._last[record.model] = key
        self._ring.append(record)

    def last_reason(self, model: str) -> str:
        """Why the last thing that was decided about a model was; empty if nothing was."""
        return self._last.get(model, ("", ""))[1]

    def recent(self) -> list[DecisionRecord]:
        """The decisions, oldest first."""
        return list(self._ring)
