"""JSON grammars: white space ends, names have one spelling, schemas are read strictly or not."""

from __future__ import annotations

import logging
from typing import Any

import llguidance
import pytest

from luce.testing.grammars import grammar_tokenizer
from luce.text.json_grammar import json_rule, read_schema, read_schema_leniently
from luce.text.schema_error import SchemaError
from luce.text.vocabulary import TokenVocabulary

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    return grammar_tokenizer(TokenVocabulary(tokens, (256,), (256,)))


def accepts(tokenizer: Any, schema: Any, text: str) -> bool:
    lark = f"start: {json_rule(read_schema(schema))}"
    matcher = llguidance.LLMatcher(tokenizer, lark, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


@pytest.mark.parametrize(
    "text", ['{"x":1}', '{"x": 1}', '{ "x" : 1 }', '{\n    "x": 1\n}', '{\n"x":1\n}']
)
def test_layouts_that_models_write(tokenizer: Any, text: str) -> None:
    assert accepts(tokenizer, POINT, text)


@pytest.mark.parametrize(
    "text", ['{  "x":1}', '{\n\n"x":1}', "{\n" + " " * 41 + '"x":1}', ' {"x":1}']
)
def test_white_space_ends(tokenizer: Any, text: str) -> None:
    assert not accepts(tokenizer, POINT, text)


def test_digits_of_an_integer_end(tokenizer: Any) -> None:
    assert accepts(tokenizer, POINT, '{"x": -9199999999999999999}')
    assert not accepts(tokenizer, POINT, '{"x": 99999999999999999999}')


@pytest.mark.parametrize("text", [r'"a"', r'"\n\"\\é"', '"\U0001f600"'])
def test_strings(tokenizer: Any, text: str) -> None:
    assert accepts(tokenizer, {"type": "string"}, text)


def test_no_name_has_a_second_spelling(tokenizer: Any) -> None:
    """`\\u0078` is `x`: as another property it would pass with any value."""
    schema = {**POINT, "required": [], "additionalProperties": True}
    assert accepts(tokenizer, schema, '{"y": "z"}')
    assert not accepts(tokenizer, schema, r'{"\u0078": "z"}')


def test_characters_without_a_short_escape_can_be_written(tokenizer: Any) -> None:
    assert accepts(tokenizer, {"const": "a\x01b"}, r'"a\u0001b"')
    assert accepts(tokenizer, {"const": "a\tb\u2028é/"}, '"a\\tb\u2028é/"')


def test_only_declared_properties(tokenizer: Any) -> None:
    assert not accepts(tokenizer, POINT, '{"x":1,"y":2}')
    assert accepts(tokenizer, {**POINT, "additionalProperties": True}, '{"x":1,"y":2}')


def test_references(tokenizer: Any) -> None:
    tree = {
        "type": "object",
        "properties": {"v": {"const": 1}, "kids": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["v"],
    }
    assert accepts(tokenizer, tree, '{"v":1,"kids":[{"v":1},{"v":1,"kids":[]}]}')
    assert not accepts(tokenizer, tree, '{"v":1,"kids":[{}]}')


class TestLenient:
    def test_what_is_left_out_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}
        with caplog.at_level(logging.INFO):
            clean = read_schema_leniently(schema, "Bash")
        assert clean["properties"] == {"a": {"type": "string"}}
        (record,) = caplog.records
        assert record.__dict__["tool"] == "Bash"
        assert record.__dict__["without"] == "properties.a.pattern"

    @pytest.mark.parametrize("schema", [{"$ref": "#"}, {"enum": list(range(30_000))}, 5])
    def test_any_object_if_nothing_is_left(
        self, schema: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO):
            assert read_schema_leniently(schema, "f") == {"type": "object"}
        assert caplog.records
        with pytest.raises(SchemaError):
            read_schema(schema)
