"""Strings that are written without quotes: which texts a schema allows, as a Lark terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from luce.text.lark import ANY_TEXT, literal, pattern

_ALTERNATIVES = ("anyOf", "oneOf")
_BOUND = frozenset(("pattern", "format", "minLength", "maxLength"))
_JOINED = frozenset(("$ref", "allOf", *_ALTERNATIVES))
_MAX_REFERENCES = 8
_PLAIN_PARTS = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)

Clean = Mapping[str, Any]


class NotWritableError(Exception):
    """No terminal stands for the strings that the schema allows."""


class RawStrings:
    """Writes strings for one place.

    Args:
        definitions: what the schemas refer to.
        can_hold: whether a text can stand there as it is.
    """

    def __init__(self, definitions: Clean, can_hold: Callable[[str], bool]) -> None:
        self._definitions = definitions
        self._can_hold = can_hold

    def of(self, schema: Clean | bool, left: int = _MAX_REFERENCES) -> str:
        """The texts of all strings that are valid for a schema.

        Args:
            schema: as `SchemaReader` gives it; values that are no strings are ignored.
            left: references that may still be followed.

        Raises:
            NotWritableError: they cannot be written so.
        """
        if isinstance(schema, bool):
            return ANY_TEXT
        if _JOINED & schema.keys():
            return self._joined(schema, left)
        if "const" in schema or "enum" in schema:
            return self._listed(schema)
        if "format" in schema:
            raise NotWritableError
        texts = [ANY_TEXT]
        if "minLength" in schema or "maxLength" in schema:
            texts = [f"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/"]
        if "pattern" in schema:
            texts.append(_searched(schema["pattern"]))
        return " & ".join(texts)

    def _joined(self, schema: Clean, left: int) -> str:
        joined = _JOINED & schema.keys()
        if len(joined) > 1 or "allOf" in joined or left == 0 or _BOUND & schema.keys():
            raise NotWritableError
        if "$ref" in joined:
            name = str(schema["$ref"]).removeprefix("#/$defs/")
            return self.of(self._definitions[name], left - 1)
        members = next(schema[word] for word in _ALTERNATIVES if word in schema)
        texts = [self.of(one, left - 1) for one in members if allows_string(one)]
        if not texts:
            raise NotWritableError
        return texts[0] if len(texts) == 1 else f"({' | '.join(f'({text})' for text in texts)})"

    def _listed(self, schema: Clean) -> str:
        given = [schema["const"]] if "const" in schema else schema["enum"]
        texts = [one for one in given if isinstance(one, str) and self._can_hold(one)]
        if not texts or _BOUND & schema.keys() or ("const" in schema and "enum" in schema):
            raise NotWritableError
        return f"({' | '.join(map(literal, texts))})"


def allows_string(schema: Clean | bool) -> bool:
    """Whether a schema's own type leaves strings."""
    if isinstance(schema, bool):
        return schema
    kinds = schema.get("type", "string")
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)


def _searched(expression: str) -> str:
    """Texts in which an expression is found anywhere."""
    inner = expression.removeprefix("^")
    # What anchors and alternatives are left without escapes and classes.
    bare = _PLAIN_PARTS.sub("x", inner)
    is_closed = bare.endswith("$")
    if is_closed:
        inner, bare = inner[:-1], bare[:-1]
    # Which alternative an anchor belongs to is not looked into.
    if re.search(r"[|^$]|\(\?[a-zA-Z]", bare):
        raise NotWritableError
    before = "" if expression.startswith("^") else "(?s:.*)"
    after = "" if is_closed else "(?s:.*)"
    return pattern(f"{before}(?:{inner}){after}", is_ascii=True)
