"""DeclaredTools: the tools of one request, and what their schemas say about an argument's text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from luce.text.call import ToolSpec
from luce.text.tools.json_stream import strict_json

_MAX_REFERENCES = 8
_INTEGER = re.compile(r"[+-]?[0-9]{1,400}")
_NUMBER = re.compile(r"(?=.{1,400}$)-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": "true", "false": "false"}

_IMPLIED = (("object", "properties"), ("array", "items"))
"""What a schema without a type is about, by its keywords."""

Schema = Mapping[str, Any]


class DeclaredTools:
    """The tools whose calls are taken. Immutable."""

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self._by_name = {tool.name: tool for tool in tools}

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self._by_name)

    @property
    def only(self) -> ToolSpec | None:
        """The one tool there is, if it is one."""
        return next(iter(self._by_name.values())) if len(self._by_name) == 1 else None

    def resolve(self, name: str) -> str | None:
        """The declared name meant: the name itself, or what follows its last colon."""
        name = name.strip()
        if name in self._by_name:
            return name
        verb = name.rpartition(":")[2]
        return verb if verb in self._by_name else None

    def json_value(self, name: str, key: str, text: str) -> str:
        """An argument's text as JSON of the type its schema declares.

        What does not fit the type, and what has no declared type, is a string. `null` is null
        only where the schema allows it and the type is not string.
        """
        kinds = self.kinds(name, key)
        main = next((kind for kind in kinds if kind != "null"), "string")
        value = text.strip()
        parsed = None
        if main != "string":
            is_null = "null" in kinds and value.lower() in ("null", "none")
            parsed = "null" if is_null else _PARSERS.get(main, _no_value)(value)
        return json.dumps(text, ensure_ascii=False) if parsed is None else parsed

    def is_text(self, name: str, key: str) -> bool:
        """Whether an argument is a string, so that the beginning of its text is one, too."""
        kinds = self.kinds(name, key)
        return next((kind for kind in kinds if kind != "null"), "string") == "string"

    def kinds(self, name: str, key: str) -> list[str]:
        """The types an argument's schema allows, in its order; empty when it does not say."""
        root = self._by_name[name].parameters
        return _kinds(_properties(root).get(key), root, _MAX_REFERENCES)


def fits(tool: ToolSpec, keys: Iterable[str], *, is_complete: bool) -> bool:
    """Whether these are names of the tool's arguments; if complete, all required ones."""
    given = set(keys)
    required = tool.parameters.get("required")
    missing = {key for key in _items(required) if isinstance(key, str)}
    return given <= _properties(tool.parameters).keys() and not (is_complete and missing - given)


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()


def _properties(schema: Schema) -> Schema:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _kinds(schema: Any, root: Schema, references_left: int) -> list[str]:
    """The types a schema allows, in its order; empty when it does not say."""
    if not isinstance(schema, dict) or references_left == 0:
        return []
    if isinstance(schema.get("$ref"), str):
        return _kinds(_referenced(schema["$ref"], root), root, references_left - 1)
    declared = schema.get("type")
    if isinstance(declared, str):
        return [declared]
    kinds = [kind for kind in _items(declared) if isinstance(kind, str)]
    for word in ("anyOf", "oneOf", "allOf"):
        for member in _items(schema.get(word)):
            kinds += _kinds(member, root, references_left - 1)
    values = [schema["const"]] if "const" in schema else _items(schema.get("enum"))
    kinds = kinds or list(map(_kind_of, values))
    return kinds or [kind for kind, word in _IMPLIED if word in schema]


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = ((int, "integer"), (float, "number"), (str, "string"), (dict, "object"))
    return next((kind for type_, kind in kinds if isinstance(value, type_)), "array")


def _referenced(reference: str, root: Schema) -> Any:
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for step in unquote(reference[2:]).split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _integer(text: str) -> str | None:
    if _INTEGER.fullmatch(text):
        return str(int(text))
    number = _number(text)
    if number is None or not float(number).is_integer():
        return None
    return str(int(float(number)))


def _number(text: str) -> str | None:
    if _NUMBER.fullmatch(text):
        return text
    try:
        value = float(text)
    except ValueError:
        return None
    if value != value or value in (float("inf"), float("-inf")):
        return None
    return json.dumps(value)


def _boolean(text: str) -> str | None:
    return _BOOLEANS.get(text.lower())


def _bracketed(opening: str) -> Callable[[str], str | None]:
    def parse(text: str) -> str | None:
        return strict_json(text) if text.startswith(opening) else None

    return parse


def _no_value(_text: str) -> None:
    return None


_PARSERS: Mapping[str, Callable[[str], str | None]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _bracketed("{"),
    "array": _bracketed("["),
}
