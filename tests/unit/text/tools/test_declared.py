"""DeclaredTools: names, and argument texts by their schema."""

from __future__ import annotations

from typing import Any

import pytest

from luce.text.call import ToolSpec
from luce.text.tools.declared import DeclaredTools, fits


def value(schema: Any, text: str, **root: Any) -> str:
    parameters = {"type": "object", "properties": {"k": schema}, **root}
    return DeclaredTools([ToolSpec("f", parameters=parameters)]).json_value("f", "k", text)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, "5", '"5"'),
        ({"type": "string"}, "null", '"null"'),
        ({"type": "string"}, ' "é" ', '" \\"é\\" "'),
        ({"type": ["string", "null"]}, "null", '"null"'),
        ({"type": "integer"}, " 5 ", "5"),
        ({"type": "integer"}, "+07", "7"),
        ({"type": "integer"}, "5.0", "5"),
        ({"type": "integer"}, "5.5", '"5.5"'),
        ({"type": "integer"}, "five", '"five"'),
        ({"type": "integer"}, "9" * 401, '"' + "9" * 401 + '"'),
        ({"type": "integer"}, "null", '"null"'),
        ({"type": "number"}, "5", "5"),
        ({"type": "number"}, "1.50", "1.50"),
        ({"type": "number"}, ".5", "0.5"),
        ({"type": "number"}, "nan", '"nan"'),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, "1" * 401, '"' + "1" * 401 + '"'),
        ({"type": "number"}, "inf", '"inf"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "false", "false"),
        ({"type": "boolean"}, "yes", '"yes"'),
        ({"type": "object"}, "{'a': 1,}", '{"a": 1}'),
        ({"type": "object"}, "[1]", '"[1]"'),
        ({"type": "array"}, "[1, 2]", "[1, 2]"),
        ({"type": "array"}, "1, 2", '"1, 2"'),
        ({"type": "null"}, "null", '"null"'),
        ({"type": ["null", "integer"]}, "5", "5"),
        ({"type": ["integer", "null"]}, "None", "null"),
        ({"type": ["integer", "string"]}, "x", '"x"'),
        ({"anyOf": [{"type": "null"}, {"type": "number"}]}, "5", "5"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", "null"),
        ({"oneOf": [{"type": "boolean"}]}, "true", "true"),
        ({"allOf": [{"description": "x"}, {"type": "integer"}]}, "5", "5"),
        ({"enum": [1, 2]}, "1", "1"),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"enum": [None, 1.5]}, "1", "1"),
        ({"const": True}, "true", "true"),
        ({"const": [1]}, "[1]", "[1]"),
        ({"const": {}}, "{}", "{}"),
        ({}, "5", '"5"'),
        ({"properties": {}}, "{}", "{}"),
        ({"items": {}}, "[1]", "[1]"),
        (True, "5", '"5"'),
        ({"type": "unheard"}, "5", '"5"'),
        ({"type": 3}, "5", '"5"'),
        ({"anyOf": "x"}, "5", '"5"'),
        (None, "5", '"5"'),
    ],
)
def test_values(schema: Any, text: str, expected: str) -> None:
    assert value(schema, text) == expected


def test_references() -> None:
    definitions = {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}
    assert value({"$ref": "#/$defs/n"}, "5", **{"$defs": definitions}) == "5"
    assert value({"$ref": "#/$defs/loop"}, "5", **{"$defs": definitions}) == '"5"'
    assert value({"$ref": "#/$defs/none"}, "5") == '"5"'
    assert value({"$ref": "http://elsewhere"}, "5") == '"5"'


def test_schemas_that_are_none() -> None:
    tools = DeclaredTools([ToolSpec("f", parameters={"properties": [1]})])
    assert tools.json_value("f", "k", "5") == '"5"'
    assert tools.is_text("f", "k")
    assert DeclaredTools([ToolSpec("f", parameters={})]).json_value("f", "k", "5") == '"5"'


def test_what_is_text() -> None:
    properties = {"s": {"type": ["null", "string"]}, "i": {"type": "integer"}}
    tools = DeclaredTools([ToolSpec("f", parameters={"properties": properties})])
    assert tools.is_text("f", "s")
    assert not tools.is_text("f", "i")


def test_names() -> None:
    tools = DeclaredTools([ToolSpec("get"), ToolSpec("ns:set")])
    assert tools.names == ("get", "ns:set")
    assert tools.resolve(" get ") == "get"
    assert tools.resolve("any:where:get") == "get"
    assert tools.resolve("ns:set") == "ns:set"
    assert tools.resolve("set") is None
    assert tools.resolve("") is None
    assert tools.only is None
    assert DeclaredTools([ToolSpec("get")]).only == ToolSpec("get")
    assert DeclaredTools([]).only is None


def test_keys_that_fit() -> None:
    tool = ToolSpec("f", parameters={"properties": {"a": {}, "b": {}}, "required": ["a", 1]})
    assert fits(tool, ["b"], is_complete=False)
    assert not fits(tool, ["b"], is_complete=True)
    assert fits(tool, ["a"], is_complete=True)
    assert not fits(tool, ["a", "c"], is_complete=False)
    assert fits(ToolSpec("f", parameters={"required": "a"}), [], is_complete=True)
