"""MarkupGuard: keeps control token texts in user strings from becoming control tokens.

Chat templates mix markup and user text into one string, so where a `<|im_end|>` came from cannot
be seen afterwards. Before rendering, the guard breaks such texts in user strings with a
noncharacter (a sentinel); after rendering, only unbroken ones are markup, and the tokenizer takes
the sentinels out of the text between them. A string without such texts is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from luce.errors import InvalidRequest
from luce.text.markup_pattern import markup_pattern

# Unicode's noncharacters: never assigned, so that ordinary text does not hold them.
_SENTINELS = tuple(
    chr(code)
    for code in (
        *range(0xFDD0, 0xFDF0),
        *(plane * 0x10000 + low for plane in range(17) for low in (0xFFFE, 0xFFFF)),
    )
)


class MarkupGuard:
    """Breaks the texts of one tokenizer's control tokens in user strings. Immutable."""

    def __init__(self, control_texts: Iterable[str]) -> None:
        texts = set(control_texts)
        self._texts = markup_pattern(texts)
        self._beginnings = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._longest = max(map(len, self._beginnings), default=0)

    def sentinel_for(self, *values: Any) -> str:
        """The character to break control token texts with; "" if there is nothing to break.

        Args:
            values: JSON-like values that hold all user strings.

        Raises:
            InvalidRequest: the strings hold every noncharacter there is.
        """
        strings = [text for value in values for text in _strings(value)]
        if not any(self._is_suspect(text) for text in strings):
            return ""
        used = set().union(*map(set, strings))
        for sentinel in _SENTINELS:
            if sentinel not in used:
                return sentinel
        raise InvalidRequest("The messages hold every Unicode noncharacter; leave one out")

    def shield(self, value: Any, sentinel: str) -> Any:
        """A copy of a JSON-like value with control token texts broken, keys included."""
        if not sentinel:
            return value
        if isinstance(value, str):
            return self._break(value, sentinel)
        if isinstance(value, dict):
            return {
                self.shield(key, sentinel): self.shield(item, sentinel)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.shield(item, sentinel) for item in value]
        return value

    def _is_suspect(self, text: str) -> bool:
        return self._texts.search(text) is not None or self._ends_as_markup_begins(text)

    def _ends_as_markup_begins(self, text: str) -> bool:
        """Whether the template could complete a control token by what it writes next."""
        return any(
            text[-length:] in self._beginnings
            for length in range(1, min(self._longest, len(text)) + 1)
        )

    def _break(self, text: str, sentinel: str) -> str:
        broken = self._texts.sub(lambda found: found[0][0] + sentinel + found[0][1:], text)
        return broken + sentinel if self._ends_as_markup_begins(text) else broken


def count_characters(*values: Any) -> int:
    """Characters of all strings in JSON-like values, keys included."""
    return sum(len(text) for value in values for text in _strings(value))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
