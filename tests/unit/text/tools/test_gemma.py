"""`call:f{...}`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from luce.text.tools.gemma import GEMMA
from luce.text.tools.hermes import HERMES

Parse = Callable[..., list[Any]]
Q = '<|"|>'


def test_gemma_4(parse: Parse) -> None:
    text = (
        f'<|tool_call>call:add{{a:5,s:{Q}Lon"don\\ {{{Q},l:[{Q}x{Q},2],o:{{k:true}}}}<tool_call|>'
        "<|tool_call>call:get{}<tool_call|>"
    )
    arguments = {"a": 5, "s": 'Lon"don\\ {', "l": ["x", 2], "o": {"k": True}}
    assert parse(text, GEMMA) == [("add", arguments), ("get", {})]


@pytest.mark.parametrize(
    "text",
    [
        "call:add{s:'x'}",
        "_call:add{s:`x`}",
        'call:ns:add{"s":"x"}',
        f"call:add{{{Q}s{Q}:{Q}x{Q}}}",
        "<|tool_call>call:add{s:'x'<tool_call|>",
    ],
)
def test_plain_text(parse: Parse, text: str) -> None:
    assert parse(text, HERMES) == [("add", {"s": "x"})]
    assert parse(f"So: {text} ok", HERMES) == ["So:", ("add", {"s": "x"}), " ok"]


@pytest.mark.parametrize(
    "text",
    [
        "call: me",
        "Please call:555",
        "call:missing{a:1}",
        "call:add is a tool",
        "call:add",
        "call:add{ nothing",
        f"call:add{{a{Q}",
        "recall:x",
    ],
)
def test_prose_is_given_back(parse: Parse, text: str) -> None:
    assert parse(text, GEMMA) == [text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"call:add{{a:1,s:{Q}one", '{"a":1,"s":"one'),
        (f"call:add{{s:{Q}one{Q}", '{"s":"one"'),
        ("call:add{", "{"),
    ],
)
def test_cut_off(parse: Parse, text: str, expected: str) -> None:
    assert parse(text, GEMMA, is_cut=True) == [("add", expected)]


def test_an_open_string_at_the_end_stays_open(parse: Parse) -> None:
    assert parse(f"call:add{{s:{Q}one", GEMMA) == [("add", '{"s":"one')]
