"""A `oneOf` whose members rule each other out is an `anyOf`, which the compiler can follow.

It only sees itself that members of different types, or with different strings, are apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from luce.text.schema_shape import children

Clean = dict[str, Any]
Values = frozenset[Hashable]


def open_apart(schema: Clean) -> None:
    """Make an `anyOf` of each `oneOf` whose members have different constants; changes the schema.

    The constants are the members themselves, or a property that each of them requires.

    Args:
        schema: as `SchemaReader` gives it.
    """
    definitions = schema.get("$defs", {})
    for one in (schema, *definitions.values()):
        for part in _parts(one):
            if "oneOf" not in part or "anyOf" in part:
                continue
            members = [_followed(member, definitions) for member in part["oneOf"]]
            if _are_apart(members):
                part["anyOf"] = part.pop("oneOf")


def _parts(schema: Any) -> Iterator[Clean]:
    if isinstance(schema, dict):
        yield schema
        for child in children(schema):
            yield from _parts(child)


def _followed(member: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(member, dict) and member.keys() == {"$ref"}:
        return definitions[member["$ref"].removeprefix("#/$defs/")]
    return member


def _are_apart(members: list[Any]) -> bool:
    if not all(isinstance(member, dict) for member in members):
        return False
    if _differ(_constants(member) for member in members):
        return True
    if any(member.get("type") != "object" for member in members):
        return False
    shared = set.intersection(*(set(member.get("required", ())) for member in members))
    return any(
        _differ(_constants(member.get("properties", {}).get(name)) for member in members)
        for name in sorted(shared)
    )


def _differ(each: Iterable[Values]) -> bool:
    """Whether all of them have values, and none a value of another's."""
    seen: set[Hashable] = set()
    for values in each:
        if not values or values & seen:
            return False
        seen |= values
    return True


def _constants(schema: Any) -> Values:
    """The values a schema leaves, if they are few and plain; else none."""
    if not isinstance(schema, dict):
        return frozenset()
    given = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if not all(value is None or isinstance(value, str | bool | int | float) for value in given):
        return frozenset()
    # 1 and 1.0 are one value in JSON; 1 and true are not, as they would be here.
    return frozenset((isinstance(value, bool), value) for value in given)
