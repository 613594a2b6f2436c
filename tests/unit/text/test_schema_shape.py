"""What a whole schema must not be: endless, too deep in references, too many patterns at once."""

from __future__ import annotations

from typing import Any

import pytest

from luce.text.schema_error import SchemaError
from luce.text.schema_reader import SchemaReader
from luce.text.schema_shape import MAX_JOINED_PATTERNS, check_shape

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


def check(schema: Any) -> None:
    check_shape(SchemaReader(schema).read())


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}},
        {
            "$ref": "#/$defs/list",
            "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}},
        },
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"enum": [1], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"allOf": [{"type": "string", "pattern": "a"}] * MAX_JOINED_PATTERNS},
        {"anyOf": [{"type": "string", "pattern": f"a{i}"} for i in range(50)]},
        {"properties": {f"p{i}": {"pattern": "a"} for i in range(50)}},
    ],
)
def test_passes(schema: Any) -> None:
    check(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"allOf": [{"$ref": "#"}, {"type": "string"}]},
        {"oneOf": [{"$ref": "#"}, False]},
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": {**NODE, "required": ["next"]}, "node": {"$ref": "#"}},
        },
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
        {"type": "object", "required": ["x"], "additionalProperties": {"$ref": "#"}},
        {"type": "object", "required": ["x"], "additionalProperties": False},
    ],
)
def test_nothing_would_ever_be_valid(schema: Any) -> None:
    with pytest.raises(SchemaError, match="without end"):
        check(schema)


def test_long_ways_through_references() -> None:
    """What lies behind the bound ends the process: the compiler follows them on its own stack."""
    chain: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}
    chain["d3000"] = {"type": "string"}
    with pytest.raises(SchemaError, match="too deep") as failure:
        check({"$defs": chain, "$ref": "#/$defs/d0"})
    assert failure.value.is_limit


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"pattern": f"a{i}"} for i in range(9)]},
        {"items": {"allOf": [{"pattern": f"a{i}", "format": "date"} for i in range(5)]}},
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{f"d{i}": {"pattern": "a", "$ref": f"#/$defs/d{i + 1}"} for i in range(9)},
                "d9": {},
            },
        },
    ],
)
def test_too_many_patterns_for_one_string(schema: Any) -> None:
    with pytest.raises(SchemaError, match="patterns"):
        check(schema)


def test_doubling_references_are_counted_once() -> None:
    doubling: dict[str, Any] = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)
    }
    check({"$defs": {**doubling, "d60": {"type": "string"}}, "$ref": "#/$defs/d0"})
