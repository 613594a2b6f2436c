"""Who decides which models are resident, as the router sees it."""

from __future__ import annotations

from typing import Protocol


class RouterObserver(Protocol):
    """Told of every change that may call for another model; called inside the router's methods."""

    def advance(self) -> None:
        """A request came to wait, stopped waiting, or gave capacity back: look what is due."""

    def admitted(self, model: str) -> None:
        """A worker took a request."""

    def may_drive(self, model: str) -> bool:
        """A request that waits for this model now would have it brought in at once."""
