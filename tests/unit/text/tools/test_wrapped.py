"""Tags around calls of other syntaxes, and GLM's pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from luce.text.tools.hermes import GLM

Parse = Callable[..., list[Any]]
ONE = ("add", {"a": 1})
PAIRS = "<arg_key>a</arg_key>\n<arg_value>1</arg_value>"


@pytest.mark.parametrize("tag", ["tool_code", "function_call", "function"])
@pytest.mark.parametrize(
    "inside",
    [
        '\n{"name": "add", "arguments": {"a": 1}}\n',
        "add(a=1)",
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        '<invoke name="add"><parameter name="a">1</parameter></invoke>',
        "<function=add><parameter=a>1</parameter></function>",
    ],
)
def test_any_call_inside(parse: Parse, tag: str, inside: str) -> None:
    assert parse(f"<{tag}>{inside}</{tag}> ok") == [ONE, " ok"]


@pytest.mark.parametrize(
    "text", ["<function_call>print(1)</function_call>", "<tool_code>\nx = 1\n</tool_code>"]
)
def test_what_is_no_call_is_given_back(parse: Parse, text: str) -> None:
    assert parse(text) == [text]


def test_pairs(parse: Parse) -> None:
    text = f"<tool_call>add\n{PAIRS}\n<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    assert parse(text, GLM) == [("add", {"a": 1, "s": "1"})]
    assert parse(text + text, GLM) == [("add", {"a": 1, "s": "1"})] * 2


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>add{PAIRS}",
        "<tool_call>add<arg_key>a<arg_value>1</tool_call>",
        "<tool_call>add<arg_key>a</arg_key><arg_value>1</tool_call>",
    ],
)
def test_missing_ends(parse: Parse, text: str) -> None:
    assert parse(text, GLM) == [ONE]


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("add<arg_key>a", "{"),
        (f"add{PAIRS}<arg_key>s</arg_key><arg_value>on", '{"a": 1, "s": "on'),
        (f"add{PAIRS}</tool", '{"a": 1'),
    ],
)
def test_cut_off(parse: Parse, inside: str, expected: str) -> None:
    assert parse(f"<tool_call>{inside}", GLM, is_cut=True) == [("add", expected)]


def test_pairs_of_nothing(parse: Parse) -> None:
    text = f"<tool_call>missing{PAIRS}</tool_call>"
    assert parse(text, GLM) == [text]
