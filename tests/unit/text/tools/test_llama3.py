"""Llama 3's calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from luce.text.tools.llama3 import LLAMA3

Parse = Callable[..., list[Any]]
CALL = '{"name": "add", "parameters": {"a": 1}}'
ONE = ("add", {"a": 1})


@pytest.mark.parametrize(
    "text", [f"<|python_tag|>{CALL}; {CALL}", f"{CALL}; {CALL}", f"{CALL}\n{CALL}\n"]
)
def test_two_calls(parse: Parse, text: str) -> None:
    assert parse(text, LLAMA3) == [ONE, ONE]


def test_a_python_call(parse: Parse) -> None:
    assert parse("<|python_tag|>add(a=1)", LLAMA3) == [ONE]


def test_code_is_given_back(parse: Parse) -> None:
    assert parse("<|python_tag|>print(1)", LLAMA3) == ["<|python_tag|>print(1)"]
