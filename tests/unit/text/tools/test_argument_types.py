"""Arguments of the wrong type are put right in every syntax, and right ones are not touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from luce.text.call import ToolSpec
from luce.text.channels import TextPiece
from luce.text.events import ToolCallDelta
from luce.text.tools.argument_types import typed_object
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.deepseek import DEEPSEEK
from luce.text.tools.gemma import GEMMA
from luce.text.tools.hermes import HERMES
from luce.text.tools.llama3 import LLAMA3
from luce.text.tools.mistral import MISTRAL
from luce.text.tools.parser import ToolParser
from luce.text.tools.syntax import ToolSyntax

Parse = Callable[..., list[Any]]

SCHEMA = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"},
        "n": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "b": {"type": "boolean"},
        "o": {"type": "object"},
        "l": {"type": "array"},
        "s": {"type": "string"},
        "u": {"type": ["integer", "string"]},
        "e": {"enum": ["1", None]},
        "x": {},
    },
}
TOOL = ToolSpec("f", None, SCHEMA)
DECLARED = DeclaredTools([TOOL])


@pytest.mark.parametrize(
    ("given", "typed"),
    [
        ({"i": "5"}, {"i": 5}),
        ({"i": " 5 "}, {"i": 5}),
        ({"n": "1.5", "b": "True"}, {"n": 1.5, "b": True}),
        ({"n": "null"}, {"n": None}),
        ({"o": '{"a": "1"}', "l": "[1, 2]"}, {"o": {"a": "1"}, "l": [1, 2]}),
        ({"s": 5, "e": True}, {"s": "5", "e": "true"}),
    ],
)
def test_put_right(given: Any, typed: Any) -> None:
    assert json.loads(typed_object(json.dumps(given), DECLARED, "f")) == typed


@pytest.mark.parametrize(
    "text",
    [
        '{"i": 5, "n": null, "b": false, "o": {"i": "5"}, "l": ["5"]}',
        '{"s": "5", "u": "5", "e": "1", "x": "5", "unheard": "5"}',
        '{"i": "five", "b": "yes", "o": "[1]", "l": "{}"}',
        '{"s": null, "e": null, "x": 5, "u": 5}',
        '{"i": "\\u0041"}',
        "{}",
    ],
)
def test_not_touched(text: str) -> None:
    assert typed_object(text, DECLARED, "f") == text


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        (HERMES, '<tool_call>{"name": "f", "arguments": {"i": "5", "s": 5}}</tool_call>'),
        (HERMES, '<tool_call>{"arguments": {"i": "5", "s": 5}, "name": "f"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"i\\": \\"5\\", \\"s\\": 5}"}'),
        (HERMES, '<tool_call>{"arguments": "{i: \'5\', s: 5}", "name": "f"}'),
        (HERMES, '<tool_call>{"function": {"name": "f", "arguments": {"i": "5", "s": 5}}}'),
        (HERMES, '<tool_call>f(i="5", s=5)</tool_call>'),
        (HERMES, '<function=f>{"i": "5", "s": 5}</function>'),
        (HERMES, "<function=f><parameter=i>5</parameter><parameter=s>5</parameter></function>"),
        (HERMES, '{"i": "5", "s": 5}'),
        (LLAMA3, '{"name": "f", "parameters": {"i": "5", "s": 5}}'),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"i": "5", "s": 5}'),
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"i": "5", "s": 5}}]'),
        (
            DEEPSEEK,
            '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"i": "5", "s": 5}\n```',
        ),
        (GEMMA, '<|tool_call>call:f{i:<|"|>5<|"|>,s:5}<tool_call|>'),
    ],
)
def test_in_every_syntax(parse: Parse, syntax: ToolSyntax, text: str) -> None:
    assert parse(text, syntax, tools=(TOOL,)) == [("f", {"i": 5, "s": "5"})]


def deltas(*texts: str, is_cut: bool = False) -> str:
    parser = ToolParser((HERMES,), DECLARED)
    pieces = [piece for text in texts for piece in parser.feed(TextPiece("content", text))]
    pieces += parser.finish(is_cut=is_cut)
    return "".join(piece.arguments for piece in pieces if isinstance(piece, ToolCallDelta))


def test_streamed_in_any_pieces() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"s": "one two", "i": "12", "b": false}}'
    assert deltas(*text) == deltas(text) == '{"s": "one two", "i": 12, "b": false}'


def test_a_value_in_doubt_that_was_cut_off_is_left_out() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"s": "one", "i": "1'
    assert deltas(*text, is_cut=True) == '{"s": "one", "i": '
