"""Strings without quotes: which texts a schema allows."""

from __future__ import annotations

from typing import Any

import llguidance
import pytest

from luce.testing.grammars import grammar_tokenizer
from luce.text.raw_string import NotWritableError, RawStrings, allows_string
from luce.text.vocabulary import TokenVocabulary

DEFINITIONS: dict[str, Any] = {
    "short": {"type": "string", "maxLength": 2},
    "loop": {"$ref": "#/$defs/loop"},
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    return grammar_tokenizer(TokenVocabulary(tokens, (256,), (256,)))


def raw(schema: Any) -> str:
    return RawStrings(DEFINITIONS, lambda text: "<" not in text).of(schema)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (True, ["", "a\nb"], []),
        ({}, ["", "é"], []),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é\né"], ["a", "abcd"]),
        ({"minLength": 2}, ["ab", "a" * 99], ["a"]),
        ({"enum": ["a b", "c", 5, "<d>"]}, ["a b", "c"], ["5", "a", "<d>"]),
        ({"const": 'q"/\\'}, ['q"/\\'], ["q"]),
        ({"pattern": "b+"}, ["b", "abba", "x\nb"], ["", "a"]),
        ({"pattern": "^b+"}, ["b", "bxx"], ["", "ab"]),
        ({"pattern": "b+$"}, ["b", "ab"], ["ba"]),
        ({"pattern": r"^\d\$$"}, ["5$"], ["5", "٣$"]),
        ({"pattern": "^[^a|$]+[]^]$"}, ["b]", "x^"], ["a]", "b"]),
        ({"pattern": r"^a\$"}, ["a$", "a$b"], ["a"]),
        ({"pattern": "^[a-c]/x$", "maxLength": 3}, ["a/x"], ["d/x"]),
        ({"$ref": "#/$defs/short"}, ["", "ab"], ["abc"]),
        (
            {"anyOf": [{"type": "null"}, {"const": "long"}, {"$ref": "#/$defs/short"}]},
            ["long", "ab"],
            ["lon", "null"],
        ),
    ],
)
def test_texts(tokenizer: Any, schema: Any, valid: list[str], invalid: list[str]) -> None:
    lark = f"start: T\nT: {raw(schema)}\n"
    for text, is_valid in [(t, True) for t in valid] + [(t, False) for t in invalid]:
        matcher = llguidance.LLMatcher(tokenizer, lark, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = list(text.encode())
        is_whole = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert is_whole == is_valid, text


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "date"},
        {"allOf": [{}, {}]},
        {"pattern": "^a|b$"},
        {"pattern": "(?i)a"},
        {"enum": ["a"], "maxLength": 3},
        {"enum": [1, 2]},
        {"enum": ["<a>"]},
        {"$ref": "#/$defs/loop"},
        {"$ref": "#/$defs/short", "minLength": 1},
        {"anyOf": [{"type": "null"}]},
        {"anyOf": [{}], "oneOf": [{}]},
    ],
)
def test_cannot_be_written(schema: Any) -> None:
    with pytest.raises(NotWritableError):
        raw(schema)


def test_what_leaves_strings() -> None:
    assert allows_string({})
    assert allows_string({"type": ["null", "string"]})
    assert not allows_string({"type": "integer"})
    assert not allows_string(False)
