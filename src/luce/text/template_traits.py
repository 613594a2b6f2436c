"""TemplateTraits: what a chat template knows of tools and reasoning, read off its source."""

from __future__ import annotations

import re
from dataclasses import dataclass

import jinja2

_ID_LENGTH = re.compile(r"\|\s*length\s*!=\s*9\b")
"""Mistral's templates refuse ids of tool calls that are not nine characters long."""


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template looks at; comments and the text it writes do not count.

    Attributes:
        has_tools: the variable `tools`.
        has_calls: `tool_calls` of a message.
        has_reasoning: `reasoning_content` of a message.
        has_short_ids: ids of calls must be nine letters and digits.
        strings: all its string constants.
    """

    has_tools: bool = False
    has_calls: bool = False
    has_reasoning: bool = False
    has_short_ids: bool = False
    strings: str = ""

    @classmethod
    def of(cls, source: str) -> TemplateTraits:
        """Read a template that compiles."""
        tokens = [(kind, text) for _, kind, text in jinja2.Environment().lex(source)]  # noqa: S701
        names = {text for kind, text in tokens if kind == "name"}
        strings = "\n".join(text for kind, text in tokens if kind == "string")
        words = names | set(re.findall(r"\w+", strings))
        return cls(
            has_tools="tools" in names,
            has_calls="tool_calls" in words,
            has_reasoning="reasoning_content" in words,
            has_short_ids=_ID_LENGTH.search(source) is not None,
            strings=strings,
        )
