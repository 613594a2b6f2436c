"""Gemma's arguments, `{k:<|"|>text<|"|>,n:5}`: how grammars force them.

JSON but for its strings, which stand between quotes of their own and have no escapes, and for
its keys, which have none. What cannot be written so is written as JSON, which the parser takes
as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from luce.text.json_grammar import json_rule
from luce.text.lark import LarkWriter, literal
from luce.text.raw_string import NotWritableError, RawStrings, allows_string
from luce.text.tools.call_form import ForcedTool, json_arguments

QUOTE = '<|"|>'

_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$]{0,199}", re.ASCII)
_SCALARS = frozenset(("integer", "number", "boolean", "null"))
_OBJECT_WORDS = frozenset(("type", "properties", "required", "additionalProperties", "$defs"))
_ARRAY_WORDS = frozenset(("type", "items", "minItems", "maxItems"))
_ALTERNATIVES = ("anyOf", "oneOf")

Clean = Mapping[str, Any]


def gemma_arguments(lark: LarkWriter, tool: ForcedTool) -> str:
    """An `ArgumentsWriter`."""
    try:
        return _Values(lark, tool.schema.get("$defs", {})).value(tool.schema)
    except NotWritableError:
        return json_arguments(lark, tool)


class _Values:
    """Writes the values of one call."""

    def __init__(self, lark: LarkWriter, definitions: Clean) -> None:
        self._lark = lark
        self._definitions = definitions
        self._strings = RawStrings(definitions, lambda text: QUOTE not in text)
        self._references: dict[str, str] = {}

    def value(self, schema: Any) -> str:
        """An expression for what is valid for a schema.

        Raises:
            NotWritableError: there is none.
        """
        if not isinstance(schema, Mapping):
            raise NotWritableError
        if schema.keys() == {"$ref"}:
            return self._referenced(str(schema["$ref"]).removeprefix("#/$defs/"))
        for word in _ALTERNATIVES:
            if schema.keys() == {word}:
                return self._any(list(map(self.value, schema[word])))
        values = [schema["const"]] if "const" in schema else schema.get("enum", ())
        if values:
            return self._listed(schema, values)
        kinds = schema.get("type", ())
        kinds = (kinds,) if isinstance(kinds, str) else kinds
        return self._any([self._of_kind(kind, schema, len(kinds)) for kind in kinds])

    def _any(self, expressions: Sequence[str]) -> str:
        if not expressions:
            raise NotWritableError
        return expressions[0] if len(expressions) == 1 else f"({' | '.join(expressions)})"

    def _referenced(self, name: str) -> str:
        if name not in self._references:
            self._references[name] = rule = self._lark.reserve()
            self._lark.define(rule, self.value(self._definitions[name]))
        return self._references[name]

    def _of_kind(self, kind: str, schema: Clean, num_kinds: int) -> str:
        if kind == "string":
            return self._string(self._strings.of({**schema, "type": "string"}))
        if kind in _SCALARS:
            words = {**schema, "type": kind}
            words.pop("$defs", None)
            return self._lark.rule(json_rule(words))
        if num_kinds > 1 and len(schema) > 1:
            raise NotWritableError
        return self._object(schema) if kind == "object" else self._array(schema)

    def _string(self, text: str) -> str:
        quote = self._lark.text(QUOTE)
        return self._lark.rule(f"{quote} {self._lark.until(QUOTE, text)}")

    def _listed(self, schema: Clean, values: Sequence[Any]) -> str:
        strings = [one for one in values if isinstance(one, str) and QUOTE not in one]
        others = [one for one in values if not isinstance(one, str | list | dict)]
        if schema.keys() - {"const", "enum", "type"} or len(strings) + len(others) < len(values):
            raise NotWritableError
        if strings and not allows_string(schema):
            raise NotWritableError
        quote = self._lark.text(QUOTE)
        parts = [f"{quote} {literal(one)} {quote}" for one in strings]
        if others:
            types = {"type": schema["type"]} if "type" in schema else {}
            parts.append(self._lark.rule(json_rule({**types, "enum": others})))
        return self._any(parts)

    def _array(self, schema: Clean) -> str:
        if schema.keys() - _ARRAY_WORDS or "items" not in schema:
            raise NotWritableError
        item = self._lark.rule(self.value(schema["items"]))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0 or (most is not None and most < least):
            raise NotWritableError
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        more = "" if most == 1 else more
        some = f"{item} {more}" if least else f"({item} {more})?"
        return self._lark.rule(f'"[" {some} "]"')

    def _object(self, schema: Clean) -> str:
        properties: Clean = schema.get("properties", {})
        required: Sequence[str] = schema.get("required", ())
        is_plain = all(map(_PLAIN_KEY.fullmatch, properties)) and properties.keys() >= set(required)
        is_open = not properties and schema.get("additionalProperties") is not False
        if schema.keys() - _OBJECT_WORDS or not is_plain or is_open:
            raise NotWritableError
        # Behind the last property, then in front of it, and so on: with one before it, or none.
        following, leading = "", ""
        for key, one in reversed(list(properties.items())):
            pair = self._lark.rule(f"{literal(key + ':')} {self.value(one)}")
            if key in required:
                leading = f"{pair} {following}"
                following = f'"," {pair} {following}'
            else:
                leading = (
                    f"({pair} {following} | {leading})" if leading else f"({pair} {following})?"
                )
                following = f'("," {pair})? {following}'
            leading, following = self._lark.rule(leading), self._lark.rule(following)
        return self._lark.rule(f'"{{" {leading} "}}"')
