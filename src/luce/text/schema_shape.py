"""What a whole schema must not be, beyond its single keywords: endless, or too much to compile.

Works on what `SchemaReader` gives: references point to `#/$defs/name` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from luce.text.schema_error import SchemaError

MAX_RECURSION = 400
"""Depths of the schema and of all it refers to, added up: the compiler's native stack holds some
2,000 of them."""
MAX_JOINED_PATTERNS = 8
"""Expressions that one string has to match all; each doubles the work of joining them."""

_SCALARS = frozenset(("string", "number", "integer", "boolean", "null"))
_ALL = ("object", "array", *_SCALARS)

Clean = Mapping[str, Any]


def check_shape(schema: Clean) -> None:
    """Refuse what would never end or take too long to compile.

    Raises:
        SchemaError: says which of it.
    """
    definitions: Clean = schema.get("$defs", {})
    everything = (schema, *definitions.values())
    if sum(map(_depth, everything)) > MAX_RECURSION:
        raise SchemaError((), "references go too deep", is_limit=True)
    if not _can_end(schema, _ending(definitions)):
        why = "no value is valid: the schema refers to itself without end, or rules itself out"
        raise SchemaError((), why)
    patterns = _JoinedPatterns(definitions)
    if any(patterns.most(one) > MAX_JOINED_PATTERNS for one in everything):
        why = f"more than {MAX_JOINED_PATTERNS} patterns for one string"
        raise SchemaError((), why, is_limit=True)


def _in_place(schema: Clean, words: Iterable[str]) -> Iterator[Any]:
    for word in words:
        yield from schema.get(word, ())


def children(schema: Clean) -> Iterator[Any]:
    """The schemas directly inside, for the same value and for parts of it."""
    yield from _in_place(schema, ("allOf", "anyOf", "oneOf"))
    yield from _inside(schema)


def _inside(schema: Clean) -> Iterator[Any]:
    """The schemas of a value's parts."""
    yield from _in_place(schema, ("prefixItems",))
    for word in ("properties", "patternProperties"):
        yield from schema.get(word, {}).values()
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield schema[word]


def _depth(schema: Any) -> int:
    if isinstance(schema, bool):
        return 1
    return 1 + max(map(_depth, children(schema)), default=0)


class _JoinedPatterns:
    """Counts the expressions that one string must match all."""

    def __init__(self, definitions: Clean) -> None:
        self._definitions = definitions
        self._known: dict[str, int] = {}

    def most(self, schema: Any) -> int:
        """Of the value itself and all its parts; references are not followed into parts."""
        if isinstance(schema, bool):
            return 0
        return max(self._here(schema), *map(self.most, children(schema)), 0)

    def _here(self, schema: Any) -> int:
        if isinstance(schema, bool):
            return 0
        count = ("pattern" in schema) + ("format" in schema)
        count += sum(map(self._here, schema.get("allOf", ())))
        for word in ("anyOf", "oneOf"):
            count += max(map(self._here, schema.get(word, ())), default=0)
        return count + (self._referenced(_name(schema)) if "$ref" in schema else 0)

    def _referenced(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = 0  # for references in a circle
            self._known[name] = self._here(self._definitions[name])
        return self._known[name]


def _ending(definitions: Clean) -> frozenset[str]:
    """The definitions that some finite value is valid for."""
    found: frozenset[str] = frozenset()
    while True:
        more = frozenset(n for n, schema in definitions.items() if _can_end(schema, found))
        if more == found:
            return found
        found = more


def _can_end(schema: Any, ending: frozenset[str]) -> bool:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and _name(schema) not in ending:
        return False
    if not all(_can_end(one, ending) for one in schema.get("allOf", ())):
        return False
    for word in ("anyOf", "oneOf"):
        if word in schema and not any(_can_end(one, ending) for one in schema[word]):
            return False
    if "const" in schema or "enum" in schema:
        return True
    return any(_kind_ends(kind, schema, ending) for kind in _kinds(schema))


def _kinds(schema: Clean) -> tuple[str, ...]:
    declared = schema.get("type", _ALL)
    return (declared,) if isinstance(declared, str) else tuple(declared)


def _kind_ends(kind: str, schema: Clean, ending: frozenset[str]) -> bool:
    if kind in _SCALARS:
        return True
    if kind == "array":
        first = schema.get("prefixItems", ())
        least = schema.get("minItems", 0)
        rest = (schema.get("items", True),) if least > len(first) else ()
        return all(_can_end(one, ending) for one in (*first[:least], *rest))
    properties = schema.get("properties", {})
    rest_schema = schema.get("additionalProperties", True)
    needed = (properties.get(name, rest_schema) for name in schema.get("required", ()))
    return all(_can_end(one, ending) for one in needed)


def _name(schema: Clean) -> str:
    return str(schema["$ref"]).removeprefix("#/$defs/")
