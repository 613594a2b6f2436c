"""One expression for many control token texts, quick on text that looks like them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

_NEVER = "(?!)"


def markup_pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """An expression that finds any of the texts, the longest at each place, as group 1.

    Common beginnings are shared: vocabularies have hundreds of `<|reserved_...|>`, and trying
    each of them at every `<` of a request would take seconds. Without texts it finds nothing.
    """
    return re.compile(f"({_alternatives({text for text in texts if text}) or _NEVER})")


def _alternatives(texts: set[str]) -> str:
    by_first: defaultdict[str, list[str]] = defaultdict(list)
    for text in sorted(texts):
        by_first[text[0]].append(text)
    parts: list[str] = []
    for group in by_first.values():
        prefix = _common_beginning(group[0], group[-1])  # sorted, so of all in between
        rests = {text[len(prefix) :] for text in group}
        is_whole = "" in rests
        inner = _alternatives(rests - {""})
        rest = f"(?:{inner}){'?' if is_whole else ''}" if inner else ""
        parts.append(re.escape(prefix) + rest)
    return "|".join(parts)


def _common_beginning(first: str, second: str) -> str:
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return first[:index]
    return min(first, second, key=len)
