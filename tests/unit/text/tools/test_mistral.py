"""`[TOOL_CALLS]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from luce.text.tools.hermes import HERMES
from luce.text.tools.mistral import MISTRAL

Parse = Callable[..., list[Any]]
ONE = ("add", {"a": 1})


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, '
        '{"name": "add", "arguments": {"a": 1}}]',
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"},'
        '{"name": "add", "arguments": {"a": 1}}]\n',
        '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{"a": 1}',
        '[TOOL_CALLS]add[CALL_ID]abc[ARGS]{"a": 1}[TOOL_CALLS]add{"a": 1}',
    ],
)
def test_forms(parse: Parse, text: str) -> None:
    assert parse(text, MISTRAL) == [ONE, ONE]
    assert parse(f"Hm. {text}", MISTRAL) == ["Hm.", ONE, ONE]


@pytest.mark.parametrize(
    "text", ["[TOOL_CALLS]missing[ARGS]{}", "[TOOL_CALLS] [1]", "[TOOL", "[x](y)", "[[1]]", "[ "]
)
def test_what_is_no_call_is_given_back(parse: Parse, text: str) -> None:
    assert parse(text, MISTRAL) == [text]


def test_only_models_taught_so_write_it(parse: Parse) -> None:
    text = '[TOOL_CALLS]add[ARGS]{"a": 1}'
    assert parse(text, HERMES) == [text]
