"""Arguments written one by one, strings as plain text: how grammars force them.

`<parameter=k>v</parameter>`, `<arg_key>k</arg_key><arg_value>v</arg_value>` and their like. What
has no type but string is text up to the closing tag, all else is JSON; where that cannot be said
of a tool, its arguments are one JSON object, which the parsers take as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.text.json_grammar import json_rule
from luce.text.lark import LarkWriter, literal
from luce.text.raw_string import NotWritableError, RawStrings
from luce.text.tools.call_form import ForcedTool, json_arguments
from luce.text.tools.declared import DeclaredTools

_PLAIN_KEY = re.compile(r"[\w.\-$@]{1,200}")
_OBJECT_WORDS = frozenset(("$defs", "type", "properties", "required", "additionalProperties"))
_SAYS_TYPE = frozenset(("type", "$ref", "const", "enum", "anyOf", "oneOf", "allOf"))

Clean = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextArguments:
    """The tags around an argument; an `ArgumentsWriter`.

    Attributes:
        before_key: begins an argument.
        after_key: between its name and its value.
        close: ends it.
        tags: what a value in text must not hold besides.
        as_text: goes behind `after_key` where the value is text.
        as_json: goes there where it is JSON.
    """

    before_key: str
    after_key: str
    close: str
    tags: tuple[str, ...]
    as_text: str = ""
    as_json: str = ""

    def __call__(self, lark: LarkWriter, tool: ForcedTool) -> str:
        """See `ArgumentsWriter`."""
        if "properties" not in tool.schema and tool.schema.get("additionalProperties") is not False:
            return f"({json_arguments(lark, tool)})?"
        try:
            return " ".join(self._arguments(lark, tool))
        except NotWritableError:
            return json_arguments(lark, tool)

    def _arguments(self, lark: LarkWriter, tool: ForcedTool) -> Iterator[str]:
        if tool.schema.keys() - _OBJECT_WORDS:
            raise NotWritableError
        rest = tool.schema.get("additionalProperties", True)
        required: Sequence[str] = tool.schema.get("required", ())
        properties = {**tool.schema.get("properties", {})}
        properties |= {name: rest for name in required if name not in properties}
        for key, schema in properties.items():
            if schema is False and key not in required:
                continue
            if not _PLAIN_KEY.fullmatch(key):
                raise NotWritableError
            argument = self._argument(lark, tool, key, schema)
            yield argument if key in required else f"({argument})?"

    def _argument(self, lark: LarkWriter, tool: ForcedTool, key: str, schema: Any) -> str:
        kinds = DeclaredTools((tool.spec,)).kinds(tool.spec.name, key)
        value = _Value(schema, tool.schema.get("$defs", {}), kinds)
        head = f"{lark.text(self.before_key)} {literal(key)} "
        if value.is_text:
            try:
                return lark.rule(head + self._text(lark, value))
            except NotWritableError:
                if not self.as_json:
                    raise
        json_value = json_rule(value.json_schema(takes_all=bool(self.as_json)))
        closing = lark.text(self.close)
        return lark.rule(
            f"{head} {lark.text(self.after_key + self.as_json)} {json_value} {closing}"
        )

    def _text(self, lark: LarkWriter, value: _Value) -> str:
        after = self.after_key + self.as_text
        # The parsers take one line end off at each side, which may be of two characters.
        first = "" if after.endswith("\n") else r"\r?\n"
        last = r"\r" if self.close.startswith("\n") else r"\n"
        lost = f"(?s:.*){last}|{first}(?s:.*)" if first else f"(?s:.*){last}"
        tags = (*self.tags, self.close.strip())

        def can_hold(text: str) -> bool:
            return not re.fullmatch(lost, text) and not any(tag in text for tag in tags)

        text = f"{RawStrings(value.definitions, can_hold).of(value.schema)} & ~/{lost}/"
        return f"{lark.text(after)} {lark.until(self.close, text, self.tags)}"


@dataclass(frozen=True, slots=True)
class _Value:
    """One argument: its schema, and the types that the parsers take its text for."""

    schema: Any
    definitions: Clean
    kinds: Sequence[str]

    @property
    def main(self) -> str:
        """The type that a text is read as if it fits."""
        return next((kind for kind in self.kinds if kind != "null"), "string")

    @property
    def is_text(self) -> bool:
        """Whether any text is a string."""
        return self.main == "string"

    def json_schema(self, *, takes_all: bool) -> dict[str, Any]:
        """Of the value as JSON.

        Args:
            takes_all: the text says itself that it is JSON, so that its type need not tell.
        """
        schema = dict(self.schema) if isinstance(self.schema, Mapping) else {}
        types = [self.main, "null"] if "null" in self.kinds else [self.main]
        is_told = bool(_SAYS_TYPE & schema.keys()) and not set(self.kinds) - set(types)
        if not takes_all and not is_told:
            schema = {"type": types, "allOf": [schema]} if schema else {"type": types}
        return {"$defs": dict(self.definitions), **schema} if self.definitions else schema
