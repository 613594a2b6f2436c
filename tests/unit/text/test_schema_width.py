"""Which places of a schema are tried one by one."""

from __future__ import annotations

from typing import Any

import pytest

from luce.text.schema_width import WIDE, wide_parts

MANY = WIDE + 1
OBJECTS = {"enum": [{"a": i} for i in range(MANY)]}
TWENTY = {"anyOf": [{"const": i} for i in range(20)]}


def paths(schema: dict[str, Any]) -> list[tuple[str, ...]]:
    return [path for path, _ in wide_parts(schema)]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": [f"word {i}" for i in range(5_000)]}, []),
        ({"properties": {f"p{i}": True for i in range(WIDE)}}, []),
        ({"properties": {f"p{i}": {} for i in range(MANY)}}, [()]),
        (
            {
                "properties": {f"p{i}": {} for i in range(MANY)},
                "required": [f"p{i}" for i in range(MANY)],
            },
            [],
        ),
        (OBJECTS, [()]),
        ({"anyOf": [{"const": i} for i in range(MANY)]}, [()]),
        ({"anyOf": [OBJECTS, {"type": "null"}]}, [()]),
        ({"properties": {"x": OBJECTS}}, [("properties", "x")]),
        ({"items": {"prefixItems": [{}, OBJECTS]}}, [("items", "prefixItems", "1")]),
        ({"anyOf": [TWENTY] * 11}, [()]),
        ({"anyOf": [TWENTY] * 10}, []),
        ({"allOf": [TWENTY, TWENTY]}, [()]),
        ({"$ref": "#/$defs/d0", "$defs": {"d0": OBJECTS}}, [(), ()]),
        ({"$ref": "#/$defs/d0", "$defs": {"d0": {"items": {"$ref": "#/$defs/d0"}}}}, []),
        ({"$ref": "#/$defs/d0", "$defs": {"d0": {"anyOf": [{"$ref": "#/$defs/d0"}]}}}, []),
        ({"items": {"anyOf": [OBJECTS] * 40, "items": OBJECTS}}, [("items",), ("items", "items")]),
    ],
)
def test_places(schema: dict[str, Any], expected: list[tuple[str, ...]]) -> None:
    assert paths(schema) == expected
