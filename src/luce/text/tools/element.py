"""What reads one call: the border between the parser and the call syntaxes."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from luce.text.tools.declared import DeclaredTools


class Outcome(Enum):
    """OPEN: wants more text. DONE: ended with its call. REJECTED: it was no call."""

    OPEN = "open"
    DONE = "done"
    REJECTED = "rejected"


class CallSink(Protocol):
    """Takes one call at a time."""

    @property
    def tools(self) -> DeclaredTools:
        """The tools whose calls are taken."""

    def begin(self, name: str) -> None:
        """A call of a declared tool; from here on the text is not given back any more."""

    def arguments(self, text: str) -> None:
        """More of its arguments' JSON."""

    def end(self) -> None:
        """The call is complete; without this it counts as cut off."""


class Element(Protocol):
    """Reads the text of one call, from behind what announced it."""

    @property
    def outcome(self) -> Outcome:
        """Where it stands. A rejected element has begun no call."""

    def feed(self, text: str) -> str:
        """Take more text; give back what lies behind the end once the outcome is decided.

        What is given back may begin with text of an earlier portion.
        """

    def finish(self, *, is_cut: bool) -> None:
        """No more text comes.

        Args:
            is_cut: the output was cut off by its length, so that a call which seems complete
                but for closing marks is not.
        """
