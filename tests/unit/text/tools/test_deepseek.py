"""DeepSeek V3, R1 and V3.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from luce.text.call import ToolSpec
from luce.text.tools.deepseek import DEEPSEEK
from luce.text.tools.hermes import HERMES

Parse = Callable[..., list[Any]]
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def call(inside: str) -> str:
    return f"<｜tool▁call▁begin｜>{inside}<｜tool▁call▁end｜>"


@pytest.mark.parametrize(
    "inside",
    [
        'function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```',
        'add<｜tool▁sep｜>{"a": 1}',
        'function<｜tool▁sep｜>add\n{"a": 1}',
    ],
)
def test_forms(parse: Parse, inside: str) -> None:
    text = f"Hm.{BEGIN}{call(inside)}\n{call(inside)}{END}"
    assert parse(text, DEEPSEEK) == ["Hm.", ("add", {"a": 1}), ("add", {"a": 1})]


def test_a_tool_called_function(parse: Parse) -> None:
    text = BEGIN + call("function<｜tool▁sep｜>{}") + END
    assert parse(text, DEEPSEEK, tools=(ToolSpec("function"),)) == [("function", {})]


@pytest.mark.parametrize(
    "text",
    [BEGIN + call("missing<｜tool▁sep｜>{}"), BEGIN + call("no separator {"), BEGIN, BEGIN + "x"],
)
def test_what_is_no_call_is_given_back(parse: Parse, text: str) -> None:
    assert parse(text, DEEPSEEK) == [text]


def test_only_models_taught_so_write_it(parse: Parse) -> None:
    text = BEGIN + call("add<｜tool▁sep｜>{}") + END
    assert parse(text, HERMES) == [text]
