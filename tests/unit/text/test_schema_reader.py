"""SchemaReader: what is kept of a schema, what is refused and where, what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from luce.text import schema_reader
from luce.text.schema_error import SchemaError
from luce.text.schema_reader import MAX_INTEGER, SchemaReader


def read(schema: Any) -> Any:
    return SchemaReader(schema).read()


def refused(schema: Any) -> SchemaError:
    with pytest.raises(SchemaError) as failure:
        read(schema)
    return failure.value


class TestKept:
    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "a"},
            {"type": ["string", "null"], "format": "date"},
            {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2, "multipleOf": 0.25},
            {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 3},
            {"type": "array", "prefixItems": [True, {}], "items": False},
            {"type": "object", "properties": {"pattern": {}}, "required": ["pattern"]},
            {"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": False},
            {"anyOf": [{"type": "string"}, {"oneOf": [{"const": None}, {"const": [1]}]}]},
            {"allOf": [{"enum": ["a", 1, {"b": [None]}]}]},
        ],
    )
    def test_as_it_is(self, schema: dict[str, Any]) -> None:
        assert read(schema) == schema

    def test_annotations_are_left_out_and_so_are_the_compiler_s_own_options(self) -> None:
        schema = {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "T",
            "description": "d",
            "default": 5,
            "examples": [1],
            "nullable": True,
            "x-guidance": {"lenient": True},
            "type": "string",
            "format": "file-path",
        }
        assert read(schema) == {"type": "string"}

    def test_what_says_nothing_is_left_out(self) -> None:
        assert read({"uniqueItems": False, "unevaluatedProperties": True}) == {}

    def test_true_allows_anything(self) -> None:
        assert read(True) == {}

    def test_older_drafts_write_tuples_otherwise(self) -> None:
        assert read({"items": [{}], "additionalItems": False}) == {
            "prefixItems": [{}],
            "items": False,
        }
        assert read({"items": {}, "additionalItems": False}) == {"items": {}}

    @pytest.mark.parametrize(
        ("given", "low", "high"),
        [
            ({"type": "integer"}, -MAX_INTEGER, MAX_INTEGER),
            ({"type": ["null", "integer"], "minimum": 3}, 3, MAX_INTEGER),
            ({"type": "integer", "maximum": -3}, -MAX_INTEGER, -3),
            (
                {"type": "integer", "minimum": -(10**30), "maximum": 2**64},
                -MAX_INTEGER,
                MAX_INTEGER,
            ),
            ({"type": "integer", "exclusiveMaximum": 2**70}, -MAX_INTEGER, MAX_INTEGER),
        ],
    )
    def test_integers_end_somewhere(self, given: dict[str, Any], low: int, high: int) -> None:
        clean = read(given)
        assert (clean["minimum"], clean["maximum"]) == (low, high)

    @pytest.mark.parametrize(
        "given", [{"type": "number", "minimum": 10**18}, {"type": ["integer", "number"]}, {}]
    )
    def test_bounds_that_would_change_the_meaning_are_not_added(self, given: Any) -> None:
        assert read(given) == given

    @pytest.mark.parametrize(
        ("given", "path"),
        [
            ({"type": "integer", "minimum": 10**20, "maximum": 10**20 + 5}, ("minimum",)),
            ({"type": "integer", "minimum": 1e20}, ("minimum",)),
            ({"type": "integer", "exclusiveMaximum": -(2**64)}, ("exclusiveMaximum",)),
            ({"type": "integer", "allOf": [{"minimum": 2**64}]}, ("allOf", "0", "minimum")),
            ({"items": {"type": "number", "maximum": 1e300}}, ("items", "maximum")),
        ],
    )
    def test_bounds_that_64_bits_do_not_hold_are_refused(self, given: Any, path: Any) -> None:
        with pytest.raises(SchemaError, match="bounds of numbers") as failure:
            read(given)
        assert failure.value.path == path
        assert SchemaReader(given, is_lenient=True).read() is not None


class TestReferences:
    def test_are_gathered_at_the_root(self) -> None:
        schema = {
            "components": {"a/b": {"type": "string"}},
            "properties": {
                "x": {"$ref": "#/components/a~1b"},
                "y": {"$ref": "#/components/a%7E1b"},
                "z": {"type": "array", "items": {"$ref": "#/properties/x"}},
            },
        }
        clean = read(schema)
        names = {key: one.get("$ref") for key, one in clean["properties"].items()}
        assert clean["$defs"][names["x"].removeprefix("#/$defs/")] == {"type": "string"}
        assert clean["$defs"][names["y"].removeprefix("#/$defs/")] == {"type": "string"}
        inner = clean["properties"]["z"]["items"]["$ref"].removeprefix("#/$defs/")
        assert clean["$defs"][inner] == {"$ref": names["x"]}

    def test_into_a_list(self) -> None:
        clean = read(
            {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]}
        )
        assert list(clean["$defs"].values()) == [{"type": "null"}]

    def test_to_the_schema_itself(self) -> None:
        clean = read({"properties": {"next": {"$ref": "#"}}})
        assert clean["$defs"] == {"d0": {"properties": {"next": {"$ref": "#/$defs/d0"}}}}

    def test_unused_definitions_are_not_looked_at(self) -> None:
        assert read({"$defs": {"a": {"not": {}}}, "type": "null"}) == {"type": "null"}

    @pytest.mark.parametrize(
        "reference", ["#/$defs/missing", "http://x/y", "other.json", "#name", 5, "#/anyOf/7"]
    )
    def test_to_nowhere(self, reference: Any) -> None:
        error = refused({"properties": {"a": {"$ref": reference}}, "anyOf": [{}]})
        assert error.path == ("properties", "a", "$ref")


class TestRefused:
    @pytest.mark.parametrize(
        ("schema", "path"),
        [
            ({"type": "nonsense"}, ("type",)),
            ({"type": []}, ("type",)),
            ({"properties": {"a": {"not": {}}}}, ("properties", "a", "not")),
            ({"items": {"uniqueItems": True}}, ("items", "uniqueItems")),
            ({"anyOf": [{}, {"if": {}}]}, ("anyOf", "1", "if")),
            ({"dependentRequired": {}}, ("dependentRequired",)),
            ({"format": "regex"}, ("format",)),
            ({"format": 3}, ("format",)),
            ({"pattern": "(?=x)"}, ("pattern",)),
            ({"pattern": 5}, ("pattern",)),
            ({"patternProperties": {"(?=x)": {}}}, ("patternProperties", "(?=x)")),
            ({"minLength": -1}, ("minLength",)),
            ({"maxItems": 1.5}, ("maxItems",)),
            ({"maxLength": True}, ("maxLength",)),
            ({"maxLength": 1e300}, ("maxLength",)),
            ({"minItems": float("inf")}, ("minItems",)),
            ({"minimum": float("nan")}, ("minimum",)),
            ({"exclusiveMinimum": True}, ("exclusiveMinimum",)),
            ({"multipleOf": 0}, ("multipleOf",)),
            ({"multipleOf": 99991}, ("multipleOf",)),
            ({"multipleOf": 0.123456789012}, ("multipleOf",)),
            ({"enum": []}, ("enum",)),
            ({"enum": "a"}, ("enum",)),
            ({"required": "a"}, ("required",)),
            ({"required": [1]}, ("required",)),
            ({"properties": []}, ("properties",)),
            ({"anyOf": {}}, ("anyOf",)),
            ({"additionalProperties": 3}, ("additionalProperties",)),
            (False, ()),
            ([], ()),
            ("x", ()),
        ],
    )
    def test_names_the_place(self, schema: Any, path: tuple[str, ...]) -> None:
        error = refused(schema)
        assert error.path == path
        assert not error.is_limit

    def test_what_one_keyword_may_cost_all_of_them_may(self) -> None:
        each = {"type": "integer", "multipleOf": 999}
        read({"prefixItems": [each] * 10})
        assert refused({"prefixItems": [each] * 11}).path == ("prefixItems", "10", "multipleOf")

    @pytest.mark.parametrize(
        "schema",
        [
            {"enum": list(range(schema_reader.MAX_NODES))},
            {"const": "x" * (schema_reader.MAX_CHARS + 1)},
            {"properties": {str(i): {} for i in range(1001)}},
            {"required": [str(i) for i in range(1001)]},
            {"patternProperties": {f"^{i}$": {} for i in range(31)}},
            {
                "prefixItems": [
                    {"patternProperties": {f"^{i}$": {} for i in range(30)}} for _ in range(11)
                ]
            },
            {"oneOf": [{}] * 201},
            {"allOf": [{}] * 201},
            {"oneOf": [{"enum": list(range(5000))}]},
            {"const": "\ud800"},
        ],
    )
    def test_too_much(self, schema: Any) -> None:
        assert refused(schema).is_limit

    @pytest.mark.parametrize("word", ["items", "additionalProperties", "const"])
    def test_too_deep(self, word: str) -> None:
        schema: Any = {}
        for _ in range(900):
            schema = {word: schema}
        error = refused(schema)
        assert error.is_limit
        assert len(error.path) <= 8


class TestLenient:
    def test_leaves_out_what_cannot_be_enforced_and_keeps_the_rest(self) -> None:
        schema = {
            "type": "object",
            "properties": {
                "path": {"type": "string", "pattern": "^(?!__)x", "maxLength": 9},
                "tags": {"type": "array", "uniqueItems": True, "items": {"format": "regex"}},
                "ref": {"$ref": "#/nowhere"},
            },
            "required": ["path"],
        }
        reader = SchemaReader(schema, is_lenient=True)
        assert reader.read() == {
            "type": "object",
            "properties": {
                "path": {"type": "string", "maxLength": 9},
                "tags": {"type": "array", "items": {}},
                "ref": {},
            },
            "required": ["path"],
        }
        assert reader.dropped == [
            ("properties", "path", "pattern"),
            ("properties", "tags", "uniqueItems"),
            ("properties", "tags", "items", "format"),
            ("properties", "ref", "$ref"),
        ]

    def test_is_no_laxer_about_size(self) -> None:
        with pytest.raises(SchemaError):
            SchemaReader({"enum": list(range(30_000))}, is_lenient=True).read()
