"""`<tool_call>` with JSON in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Parse = Callable[..., list[Any]]
ONE = ("add", {"a": 1})


@pytest.mark.parametrize(
    "inside",
    [
        '\n{"name": "add", "arguments": {"a": 1}}\n',
        '{"arguments": {"a": 1}, "name": "add"}',
        '{"name": "add", "parameters": {"a": 1}}',
        '{"function": "add", "parameters": {"a": 1}}',
        '{"function": {"name": "add", "arguments": {"a": 1}}}',
        '{"type": "function", "id": "x", "function_call": {"name": "add", "arguments": {"a": 1}}}',
        '{"name": "add", "arguments": "{\\"a\\": 1}"}',
        "{'name': 'add', arguments: {a: 1,},}",
        '{"name": "add", "arguments": {"a": 1}}}',
        '{"name": "add", "arguments": {"a": 1}',
        '{"name": "add", "arguments": {"a": 1',
        '[{"name": "add", "arguments": {"a": 1}}]',
        "add(a=1)",
        'add {"a": 1}',
    ],
)
def test_forms_of_one_call(parse: Parse, inside: str) -> None:
    assert parse(f"<tool_call>{inside}</tool_call>") == [ONE]


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ('{"name": "get"}', {}),
        ('{"name": "get", "arguments": {}}', {}),
        ('{"name": "get", "arguments": null}', {}),
        ('{"name": "get", "arguments": ""}', {}),
        ("get", {}),
        ("\nget\n", {}),
        ("get()", {}),
    ],
)
def test_no_arguments(parse: Parse, inside: str, arguments: dict[str, Any]) -> None:
    assert parse(f"<tool_call>{inside}</tool_call>") == [("get", arguments)]


def test_two_blocks_and_text_around(parse: Parse) -> None:
    block = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert parse(f"Looking.\n{block}\n{block}\n") == ["Looking.", ONE, ONE]
    assert parse(f"{block}\n\nDone. ") == [ONE, "\n\nDone. "]


def test_two_calls_in_one_block(parse: Parse) -> None:
    call = '{"name": "add", "arguments": {"a": 1}}'
    assert parse(f"<tool_call>{call}\n{call}</tool_call>") == [ONE, ONE]
    assert parse(f"<tool_call>[{call}, {call}]</tool_call>.") == [ONE, ONE, "."]


def test_the_end_may_be_missing(parse: Parse) -> None:
    assert parse('<tool_call>{"name": "add", "arguments": {"a": 1}}') == [ONE]
    assert parse('<tool_call>{"name": "add", "arguments": {"a": 1') == [ONE]


def test_markup_inside_a_string_is_the_strings(parse: Parse) -> None:
    text = '<tool_call>{"name": "add", "arguments": {"s": "</tool_call>{"}}</tool_call>'
    assert parse(text) == [("add", {"s": "</tool_call>{"})]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "missing", "arguments": {"a": 1}}</tool_call> x',
        '<tool_call>{"name": "add", "arguments": {"a": what}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "no json"}</tool_call>',
        '<tool_call>{"name": "add" "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        "<tool_call>{}</tool_call>",
        "<tool_call>missing</tool_call>",
        "<tool_call> is the tag.\n",
        "<tool_call>",
        "<tool_call>[",
        '<tool_call>\n{"name": "add", "arg',
        "a </tool_call> b",
        "a < b",
    ],
)
def test_what_is_no_call_is_given_back(parse: Parse, text: str) -> None:
    assert parse(text) == [text]


def test_a_call_behind_something_that_is_none(parse: Parse) -> None:
    good = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    bad = '<tool_call>{"name": "missing"}</tool_call>'
    assert parse(f"<tool_call> no <tool_call>{bad}{good}") == [
        f"<tool_call> no <tool_call>{bad}",
        ONE,
    ]


def test_a_call_that_breaks_when_it_has_begun_stays_incomplete(parse: Parse) -> None:
    text = '<tool_call>{"name": "add", "arguments": {"s": "x" oops}}</tool_call>'
    assert parse(text) == [("add", '{"s": "x"'), "oops}}</tool_call>"]


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ('{"name": "add", "arguments": {"s": "one tw', [("add", '{"s": "one tw')]),
        ('{"name": "add", "arguments": {"a": 1', [("add", '{"a":')]),
        ('{"arguments": {"a": 1, "s": "x', ['<tool_call>{"arguments": {"a": 1, "s": "x']),
        ('{"name": "add", "argum', ['<tool_call>{"name": "add", "argum']),
        ('add(s="on', [("add", '{"s":"on')]),
    ],
)
def test_cut_off(parse: Parse, inside: str, expected: list[Any]) -> None:
    assert parse(f"<tool_call>{inside}", is_cut=True) == expected
