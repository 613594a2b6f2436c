"""JSON schemas of the wire types, with what their docstrings and range tables say besides."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect as types

from luce.listener.dialects.ranges import RANGES, Range
from luce.listener.openapi.rules import FIELD_RULES, LOGIT_BIAS_NAMES, Schema

REF = "#/components/schemas/"

_OUR_MODULES = re.compile(r"luce\.(?:\w+\.)*(?=\w+\.\w+$)")
_ATTRIBUTES = re.compile(r"\n*^Attributes:\n(?P<lines>(?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^ {4}(?P<names>\w+(?:, \w+)*): (?P<text>.*(?:\n {8}.*)*)", re.MULTILINE)


def schemas_of(
    requests: Sequence[type], answers: Sequence[type]
) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    """The schemas of these types.

    Args:
        requests: what clients send: a field that has a default may be left out.
        answers: what we send: nearly every field is always there.

    Returns:
        the schema of each type, and those they refer to by their names.
    """
    wanted = list(dict.fromkeys([*requests, *answers]))
    found, named = msgspec.json.schema_components(wanted, ref_template=REF + "{name}")
    sent = set(_structs_in(requests))
    written = set(_structs_in(answers))
    for struct in sent | written:
        schema = named[_name_of(struct, named)]
        _describe(schema, struct)
        if struct in sent:
            _limit(schema, struct)
        else:
            _require(schema, struct)
    short = {name: _OUR_MODULES.sub("", name) for name in named}
    schemas = {key: _tidied(value, short) for key, value in zip(wanted, found, strict=True)}
    return schemas, {short[name]: _tidied(schema, short) for name, schema in named.items()}


def _structs_in(wanted: Sequence[type]) -> Iterator[type[msgspec.Struct]]:
    """All structs that these types are made of."""
    seen: set[type] = set()
    waiting: list[object] = [*types.multi_type_info(wanted)]
    while waiting:
        info = waiting.pop()
        if isinstance(info, types.StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            yield info.cls
        waiting += _parts_of(info)


def _parts_of(info: object) -> Iterable[object]:
    """The types a type is made of."""
    if not isinstance(info, types.Type | types.Field):
        return
    for name in info.__struct_fields__:
        value = getattr(info, name)
        if isinstance(value, types.Type | types.Field):
            yield value
        elif isinstance(value, tuple):
            yield from value


def _name_of(struct: type, named: Mapping[str, Schema]) -> str:
    """Two structs of one name get those of their modules in front."""
    plain = struct.__name__
    return plain if plain in named else f"{struct.__module__}.{struct.__qualname__}"


def _describe(schema: Schema, struct: type) -> None:
    """Move what the docstring says of each field to that field."""
    text = inspect.getdoc(struct) or ""
    attributes = _ATTRIBUTES.search(text)
    schema["description"] = _ATTRIBUTES.sub("", text).strip()
    for found in _ATTRIBUTE.finditer(attributes["lines"] if attributes else ""):
        for name in found["names"].split(", "):
            if name in schema["properties"]:
                schema["properties"][name]["description"] = " ".join(found["text"].split())


def _limit(schema: Schema, struct: type) -> None:
    """Add what is checked after decoding: the ranges of numbers, and our rules."""
    for (owner, field), rule in FIELD_RULES.items():
        if owner is struct:
            schema["properties"][field] |= rule
    for choice in schema["properties"].get("logit_bias", {}).get("anyOf", ()):
        if choice.get("type") == "object":
            choice["propertyNames"] = LOGIT_BIAS_NAMES
    for name, allowed in RANGES.items():
        for choice in schema["properties"].get(name, {}).get("anyOf", ()):
            if choice.get("type") in ("integer", "number"):
                choice |= _bounds(allowed, whole=choice["type"] == "integer")


def _bounds(allowed: Range, *, whole: bool) -> Schema:
    low = int(allowed.low) if whole else allowed.low
    bounds: Schema = {"exclusiveMinimum" if allowed.above else "minimum": low}
    if allowed.high != float("inf"):
        bounds["maximum"] = int(allowed.high) if whole else allowed.high
    return bounds


def _require(schema: Schema, struct: type[msgspec.Struct]) -> None:
    """What we send is there whether it is a default or not."""
    if struct.__struct_config__.omit_defaults:
        return
    for field in msgspec.structs.fields(struct):
        required = schema.setdefault("required", [])
        if field.default is not msgspec.UNSET and field.encode_name not in required:
            required.append(field.encode_name)


def _tidied(value: Any, short: Mapping[str, str]) -> Any:
    """References by short names; without defaults that say "absent"."""
    if isinstance(value, list | tuple):
        return [_tidied(item, short) for item in value]
    if isinstance(value, str) and value.startswith(REF):
        return REF + short[value.removeprefix(REF)]
    if not isinstance(value, dict):
        return value
    is_absent = "default" in value and value["default"] is None
    return {
        key: _tidied(item, short)
        for key, item in value.items()
        if not (is_absent and key == "default")
    }
