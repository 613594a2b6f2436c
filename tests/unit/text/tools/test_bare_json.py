"""JSON that nothing announces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from luce.text.call import ToolSpec

Parse = Callable[..., list[Any]]
WEATHER = ToolSpec(
    "weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)


def test_a_call_object_begins_an_answer(parse: Parse) -> None:
    call = '{"name": "add", "arguments": {"a": 1}}'
    one = ("add", {"a": 1})
    assert parse(f"\n {call}\n") == [one]
    assert parse(f"[{call}, {call}]") == [one, one]
    assert parse(f"{call} So.") == [one, " So."]
    assert parse(f"So: {call}") == [f"So: {call}"]


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 1, "name": "add"}',
        '{"name": "add"}',
        '{"name": "add", "age": 3}',
        '{"name": "Bob", "arguments": {}}',
        "{}",
        "[1, 2]",
        '{"name": "add", "arg',
        "{ x }",
    ],
)
def test_an_answer_in_json_is_text(parse: Parse, text: str) -> None:
    assert parse(text) == [text]


def test_arguments_of_the_only_tool(parse: Parse) -> None:
    found = parse('{"city": "Paris", "days": 2}\n', tools=(WEATHER,))
    assert found == [("weather", {"city": "Paris", "days": 2})]


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ('{"days": 2}', (WEATHER,)),
        ('{"city": "Paris", "mood": 1}', (WEATHER,)),
        ('{"city": "Paris"} is it', (WEATHER,)),
        ('{"city": "Par', (WEATHER,)),
        ('{"city": "Paris"}', (WEATHER, ToolSpec("get"))),
    ],
)
def test_arguments_of_nothing(parse: Parse, text: str, tools: tuple[ToolSpec, ...]) -> None:
    assert parse(text, tools=tools) == [text]


def test_arguments_cut_off_are_text(parse: Parse) -> None:
    text = '{"city": "Paris"}'
    assert parse(text, tools=(WEATHER,), is_cut=True) == [text]
