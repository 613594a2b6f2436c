"""MarkerScanner: finds fixed strings in text that comes in pieces, and splits none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from luce.text.markup_pattern import markup_pattern

_SLICE_CHARS = 4096


def slices(text: str) -> Iterator[str]:
    """The text in bounded pieces: cutting at each of many markers stays linear in all."""
    for start in range(0, len(text), _SLICE_CHARS):
        yield text[start : start + _SLICE_CHARS]


class MarkerSet:
    """Strings to look for, compiled. Immutable; no string may lie inside another's middle."""

    def __init__(self, markers: Iterable[str]) -> None:
        texts = set(markers)
        self.pattern = markup_pattern(texts)
        self.beginnings = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self.longest = max(map(len, self.beginnings), default=0)


@lru_cache(maxsize=256)
def marker_set(markers: frozenset[str]) -> MarkerSet:
    """The compiled set; kept, as compiling takes longer than a short answer's parsing."""
    return MarkerSet(markers)


class MarkerScanner:
    """Looks for the markers of one set; of several at one place the longest is found.

    Text that may be the beginning of a marker is held back until that is decided, so what is
    found does not depend on how the text was cut.
    """

    def __init__(self, markers: MarkerSet) -> None:
        self._set = markers
        self._held = ""

    @property
    def is_holding(self) -> bool:
        """Whether the beginning of a marker is held back."""
        return bool(self._held)

    @property
    def num_held(self) -> int:
        """How many characters that is."""
        return len(self._held)

    def feed(self, text: str) -> tuple[str, str, str]:
        """Take more text.

        Returns:
            The text before the first marker, the marker, the text behind it, which must be fed
            again. Without a marker the last two are empty, and what is held back is missing.
        """
        text = self._held + text
        self._held = ""
        found = self._set.pattern.search(text)
        if found is None:
            start = self._start_of_beginning(text)
        elif text[found.start() :] in self._set.beginnings:  # a longer one may come
            start = found.start()
        else:
            return text[: found.start()], found[0], text[found.end() :]
        self._held = text[start:]
        return text[:start], "", ""

    def flush(self) -> str:
        """The text has ended: what was held back; a marker, if it is one."""
        held, self._held = self._held, ""
        return held

    def _start_of_beginning(self, text: str) -> int:
        beginnings = self._set.beginnings
        for start in range(max(0, len(text) - self._set.longest), len(text)):
            if text[start:] in beginnings:
                return start
        return len(text)
