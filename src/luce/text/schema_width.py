"""Where a schema leaves much open at one place: many alternatives, many optional properties.

There a grammar breaks while it is followed, not while it is compiled, so those places are tried
one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WIDE = 200
"""Alternatives at one place from which on it is tried: each takes up to 20 items of a row."""

_MOST = 1_000_000
_IN_PLACE = ("allOf", "anyOf", "oneOf")

Clean = Mapping[str, Any]
Place = tuple[tuple[str, ...], Clean]


def wide_parts(schema: Clean) -> Iterator[Place]:
    """The parts of a schema that are wide, each with its path; () in what is referred to.

    Of parts that stand for the same value the outermost is given.

    Args:
        schema: as `SchemaReader` gives it.
    """
    definitions: Clean = schema.get("$defs", {})
    widths = _Widths(definitions)
    roots: list[Place] = [((), schema)]
    roots += [((), one) for one in definitions.values() if isinstance(one, Mapping)]
    for path, root in roots:
        is_shown = root is schema
        for place, part in _wide_below(path, root, widths, is_known=False):
            yield (place if is_shown else ()), part


def steps(schema: Clean) -> Iterator[Place]:
    """The schemas directly inside, with the way to each."""
    for word, value in schema.items():
        inner: Iterator[tuple[tuple[str, ...], Any]] = iter(())
        if word in ("properties", "patternProperties"):
            inner = (((word, name), one) for name, one in value.items())
        elif word in (*_IN_PLACE, "prefixItems"):
            inner = (((word, str(index)), one) for index, one in enumerate(value))
        elif word in ("items", "additionalProperties"):
            inner = iter([((word,), value)])
        yield from ((step, one) for step, one in inner if isinstance(one, Mapping))


def _wide_below(
    path: tuple[str, ...], part: Clean, widths: _Widths, *, is_known: bool
) -> Iterator[Place]:
    is_wide = widths.of(part) > WIDE
    if is_wide and not is_known:
        yield path, part
    for step, child in steps(part):
        in_place = is_wide and step[0] in _IN_PLACE
        yield from _wide_below((*path, *step), child, widths, is_known=in_place)


class _Widths:
    """How many ways a value can begin, roughly."""

    def __init__(self, definitions: Clean) -> None:
        self._definitions = definitions
        self._known: dict[str, int] = {}
        self._parts: dict[int, int] = {}

    def of(self, schema: Any) -> int:
        """At least 1."""
        if isinstance(schema, bool):
            return 1
        if id(schema) not in self._parts:
            self._parts[id(schema)] = self._count(schema)
        return self._parts[id(schema)]

    def _count(self, schema: Clean) -> int:
        compound = sum(isinstance(one, Mapping | list) for one in schema.get("enum", ()))
        optional = len(schema.get("properties", {}).keys() - set(schema.get("required", ())))
        width = max(1, compound, optional)
        for word in ("anyOf", "oneOf"):
            width *= max(1, sum(map(self.of, schema.get(word, ()))))
        for one in schema.get("allOf", ()):
            width = min(_MOST, width * self.of(one))
        if "$ref" in schema:
            width *= self._referenced(str(schema["$ref"]).removeprefix("#/$defs/"))
        return min(_MOST, width)

    def _referenced(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = 1  # for references in a circle
            self._known[name] = self.of(self._definitions[name])
        return self._known[name]
