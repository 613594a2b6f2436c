"""LarkWriter: texts, control tokens and texts up to a mark, as the compiler understands them."""

from __future__ import annotations

from typing import Any

import llguidance
import pytest

from luce.testing.grammars import grammar_tokenizer
from luce.text.lark import ANY_TEXT, LarkWriter, lacking, literal, pattern
from luce.text.markup_pattern import markup_pattern
from luce.text.vocabulary import TokenVocabulary

CONTROL = {"<a>": 256, "<end>": 257}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in CONTROL]
    return grammar_tokenizer(TokenVocabulary(tokens, (256, 257), (257,)))


@pytest.fixture
def lark() -> LarkWriter:
    return LarkWriter(markup_pattern(CONTROL), CONTROL.get)


def accepts(tokenizer: Any, lark: LarkWriter, start: str, *parts: str | int) -> bool:
    """Whether an output, texts and control tokens in turn, is all that the grammar wants."""
    ids = [i for part in parts for i in ([part] if isinstance(part, int) else part.encode())]
    matcher = llguidance.LLMatcher(tokenizer, lark.source(start), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


def test_control_tokens_are_tokens_and_nothing_else(tokenizer: Any, lark: LarkWriter) -> None:
    start = lark.text('x<a>"\n\\é')
    assert accepts(tokenizer, lark, start, "x", 256, '"\n\\é')
    assert not accepts(tokenizer, lark, start, 'x<a>"\n\\é')
    assert lark.text("") == ""


@pytest.mark.parametrize("text", ["", "a", "a</p", "</p </p >", "é\n<a", "<q>"])
def test_text_up_to_a_mark(tokenizer: Any, lark: LarkWriter, text: str) -> None:
    start = f"{lark.until('</p>', without=('<q>',))} {literal('!')}"
    assert accepts(tokenizer, lark, start, f"{text}</p>!") == ("<q>" not in text)
    assert not accepts(tokenizer, lark, start, f"{text}</p></p>!")


@pytest.mark.parametrize("text", ["", "a", "</", "a</b", "<a>"])
def test_text_up_to_a_mark_with_a_control_token(
    tokenizer: Any, lark: LarkWriter, text: str
) -> None:
    start = lark.until("</<a>p>")
    assert accepts(tokenizer, lark, start, f"{text}</", 256, "p>")
    assert not accepts(tokenizer, lark, start, f"{text}</<a>p>")


def test_text_up_to_a_control_token(tokenizer: Any, lark: LarkWriter) -> None:
    start = f"{lark.until('<a>')} {literal('.')}"
    assert accepts(tokenizer, lark, start, "", 256, ".")
    assert accepts(tokenizer, lark, start, "any <end> text", 256, ".")


def test_lacking_is_about_texts_not_expressions(tokenizer: Any, lark: LarkWriter) -> None:
    marks = ("[a.b]", "x|/\n", '<|"|>')
    start = lark.terminal(f"{ANY_TEXT} & {lacking(marks)}")
    assert accepts(tokenizer, lark, start, '[a b] x / <"|>')
    for text in ("[a.b]", "..x|/\n..", '<|"|>'):
        assert not accepts(tokenizer, lark, start, text)


@pytest.mark.parametrize(
    ("expression", "text", "is_match"),
    [
        ("a/b", "a/b", True),
        (r"a\/b", "a/b", True),
        ("a\nb", "a\nb", True),
        (r"^\d+$", "55", True),
        (r"\d", "٣", True),
        ("a|b", "c", False),
    ],
)
def test_patterns(
    tokenizer: Any, lark: LarkWriter, expression: str, text: str, is_match: bool
) -> None:
    assert accepts(tokenizer, lark, lark.rule(pattern(expression)), text) == is_match


def test_digits_of_schemas_are_ascii(tokenizer: Any, lark: LarkWriter) -> None:
    assert not accepts(tokenizer, lark, lark.rule(pattern(r"\d", is_ascii=True)), "٣")


def test_equal_rules_are_one(lark: LarkWriter) -> None:
    assert lark.rule('"a"') == lark.rule('"a"') != lark.terminal('"a"')


def test_a_rule_may_refer_to_itself(tokenizer: Any, lark: LarkWriter) -> None:
    name = lark.reserve()
    lark.define(name, f'"(" {name} ")" | "."')
    assert accepts(tokenizer, lark, name, "((.))")
    assert not accepts(tokenizer, lark, name, "((.)")
