"""JsonListener: who is told what a `JsonStream` reads."""

from __future__ import annotations

from typing import Protocol


class JsonListener(Protocol):
    """Told of the outer brackets of a `JsonStream` while it reads."""

    def on_key(self, depth: int, key: str) -> None:
        """A key was read, inside `depth` brackets."""

    def on_value_start(self, depth: int, first: str) -> None:
        """A value begins, before anything of it is given out; `first` is `{`, `[`, `"` or `0`."""

    def on_value_end(self, depth: int) -> None:
        """A value is complete and given out."""
