"""StopMatcher: finds stop strings in text that comes in pieces, and leaks none of them."""

from __future__ import annotations

import re
from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to the first stop string.

    The stop string that is complete first wins; of several complete at the same character, the
    longest. Text that may be the beginning of a stop string is held back until that is decided,
    so what is let through does not depend on how the text was cut. Time is linear in the text
    for each stop string.

    Args:
        stops: the stop strings, none of them empty.

    Attributes:
        matched: the stop string found, or None. Nothing is let through any more once it is set.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._borders = [_border_lengths(stop) for stop in self._stops]
        self._progress = [0] * len(self._stops)
        # Held-back text is a prefix of a stop string, so that string and a length say it all.
        self._held_of = ""
        self._num_held = 0
        heads = "".join(sorted({re.escape(stop[0]) for stop in self._stops}))
        self._head = re.compile(f"[{heads}]") if heads else None

    def feed(self, text: str) -> str:
        """Take more text; give what can be shown now."""
        if self.matched is not None:
            return ""
        if self._head is None:
            return text
        position = 0
        while position < len(text):
            if not any(self._progress):
                head = self._head.search(text, position)
                if head is None:
                    break
                position = head.start()
            self.matched = self._advance(text[position])
            position += 1
            if self.matched is not None:
                return self._release(text, self._num_held + position - len(self.matched))
        num_held = max(self._progress)
        shown = self._release(text, self._num_held + len(text) - num_held)
        self._num_held = num_held
        self._held_of = self._stops[self._progress.index(num_held)]
        return shown

    def flush(self) -> str:
        """The text has ended: what was held back is no stop string after all."""
        if self.matched is not None:
            return ""
        held = self._held_of[: self._num_held]
        self._num_held = 0
        return held

    def _release(self, text: str, count: int) -> str:
        """The first `count` characters of what was held before, followed by `text`."""
        if count <= self._num_held:
            return self._held_of[:count]
        return self._held_of[: self._num_held] + text[: count - self._num_held]

    def _advance(self, character: str) -> str | None:
        """Move every stop string's state; the longest one completed, if any."""
        found: str | None = None
        for index, stop in enumerate(self._stops):
            length = self._progress[index]
            borders = self._borders[index]
            while length and stop[length] != character:
                length = borders[length - 1]
            if stop[length] == character:
                length += 1
            if length == len(stop) and found is None:
                found = stop
            self._progress[index] = length
        return found


def _border_lengths(pattern: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix.

    Source: Knuth, Morris and Pratt, "Fast pattern matching in strings" (1977).
    """
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        borders[index] = length
    return borders
