"""Which oneOf becomes an anyOf."""

from __future__ import annotations

from typing import Any

import pytest

from luce.text.schema_apart import open_apart


def tagged(value: Any, **rest: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": {"const": value}}, "required": ["k"], **rest}


def is_opened(*members: Any, **beside: Any) -> bool:
    schema = {"oneOf": list(members), **beside}
    open_apart(schema)
    assert ("oneOf" in schema) != (list(members) == schema.get("anyOf"))
    return "oneOf" not in schema


@pytest.mark.parametrize(
    "members",
    [
        [tagged(0), tagged(1)],
        [tagged(True), tagged(1)],
        [tagged("a"), tagged(None), tagged(2.5)],
        [{"const": 1}, {"const": 2}],
        [{"enum": [1, 2]}, {"enum": [3], "type": "integer"}],
        [tagged(0, title="x"), {**tagged(1), "required": ["j", "k"]}],
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    ],
)
def test_members_with_different_constants(members: list[Any]) -> None:
    assert is_opened(*members, **{"$defs": {"a": tagged(0), "b": tagged(1)}})


@pytest.mark.parametrize(
    "members",
    [
        [tagged(0), tagged(0)],
        [tagged(1), tagged(1.0)],
        [tagged(0), {"type": "object", "properties": {"k": {"const": 1}}}],
        [tagged(0), {"properties": {"k": {"const": 1}}, "required": ["k"]}],
        [tagged(0), {"type": ["object", "null"], **{"required": ["k"]}}],
        [tagged({}), tagged([])],
        [tagged(0), True],
        [{"enum": [1, 2]}, {"enum": [2, 3]}],
        [{"type": "string"}, {"type": "string", "maxLength": 3}],
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}],
    ],
)
def test_members_that_may_overlap(members: list[Any]) -> None:
    assert not is_opened(*members, **{"$defs": {"a": tagged(0)}})


def test_an_anyof_beside_it_is_kept() -> None:
    schema = {"oneOf": [tagged(0), tagged(1)], "anyOf": [{}]}
    open_apart(schema)
    assert schema == {"oneOf": [tagged(0), tagged(1)], "anyOf": [{}]}


def test_it_is_found_anywhere() -> None:
    inner = {"oneOf": [tagged(0), tagged(1)]}
    schema = {"items": dict(inner), "$defs": {"d0": {"allOf": [dict(inner)]}}}
    open_apart(schema)
    assert "anyOf" in schema["items"]
    assert "anyOf" in schema["$defs"]["d0"]["allOf"][0]
