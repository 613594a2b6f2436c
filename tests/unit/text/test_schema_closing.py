"""Objects keep to the properties they declare."""

from __future__ import annotations

from typing import Any

import pytest

from luce.text.schema_closing import close_objects
from luce.text.schema_reader import SchemaReader


def closed(schema: Any) -> Any:
    clean = SchemaReader(schema).read()
    close_objects(clean)
    return clean


def test_every_object_that_leaves_it_open() -> None:
    inner = {"type": "object", "properties": {"b": {}}}
    schema = {
        "properties": {"a": inner, "list": {"items": {"anyOf": [inner, {"type": "null"}]}}},
        "required": ["a"],
    }
    shut = {**inner, "additionalProperties": False}
    assert closed(schema) == {
        "properties": {"a": shut, "list": {"items": {"anyOf": [shut, {"type": "null"}]}}},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_what_is_referred_to() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {}}}}}
    assert closed(schema)["$defs"]["d0"]["additionalProperties"] is False


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"properties": {"a": {}}, "required": ["b"]},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
    ],
)
def test_left_as_it_is(schema: Any) -> None:
    assert closed(schema) == schema
