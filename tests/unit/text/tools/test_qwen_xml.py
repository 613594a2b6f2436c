"""`<function=f><parameter=k>v</parameter></function>` and its slips."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from luce.text.tools.qwen_xml import QWEN_XML, slips

Parse = Callable[..., list[Any]]
BODY = "<parameter=a>\n12\n</parameter>\n<parameter=s>\n12\n</parameter>"
CALL = ("add", {"a": 12, "s": "12"})


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n<function=add>\n{BODY}\n</function>\n</tool_call>",
        f"<function=add>{BODY}</function>",
        f"<function=add>{BODY}</tool_call>",
        f"<tool_call><function=add>{BODY}",
        f"<tool_call><function=add>{BODY.removesuffix('</parameter>')}</function></tool_call>",
        "<function=add><parameter=a>12<parameter=s>12</parameter></function>",
        '<function=add>{"a": 12, "s": "12"}</function>',
        '<function=add(a=12, s="12")></function>',
        f'<function name="add">{BODY.replace("=a", " name=a").replace("=s", " name=s")}</function>',
        f"<function add>{BODY}</function>",
        f"<add>{BODY}</function>",
        f'<parameter name="add">{BODY}</function>',
        f"<funcname>add</funcname>{BODY}</function>",
        f"<funcname>add\n{BODY}</function>",
        f"<funcname>add{BODY}</function>",
    ],
)
def test_forms_of_one_call(parse: Parse, text: str) -> None:
    assert parse(text, QWEN_XML) == [CALL]


@pytest.mark.parametrize(
    "value", ["</function>", "</tool_call>", "<parameter=a>1</parameter>", '"\\\n{', "<tool_call>"]
)
def test_tags_in_an_object_are_text(parse: Parse, value: str) -> None:
    body = json.dumps({"s": f"x {value} y"})
    text = f"<tool_call>\n<function=add>\n {body}\n</function>\n</tool_call>\nDone."
    assert parse(text, QWEN_XML) == [("add", {"s": f"x {value} y"}), "\nDone."]


def test_what_begins_like_an_object_is_read_as_before(parse: Parse) -> None:
    assert parse('<function=add>{"a": 12</function>', QWEN_XML) == [("add", {"a": 12})]
    text = f"<function=add>{{}} {BODY}</function>"
    assert parse(text, QWEN_XML) == [CALL]
    text = '<function=add>{"s": "x</function> and more'
    assert parse(text, QWEN_XML) == [text]


def test_calls_and_text(parse: Parse) -> None:
    call = f"<tool_call>\n<function=add>\n{BODY}\n</function>\n</tool_call>"
    assert parse(f"Looking.\n\n{call}\n{call}\nDone.", QWEN_XML) == [
        "Looking.",
        CALL,
        CALL,
        "\nDone.",
    ]


def test_a_call_behind_one_that_was_not_closed(parse: Parse) -> None:
    text = f"<function=add>{BODY}\n<function=get></function>"
    assert parse(text, QWEN_XML) == [CALL, ("get", {})]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("one</function> two", "one</function> two"),
        ("\n\n  x\n\n", "\n  x\n"),
        ("\r\nx\r\n", "x"),
        ("", ""),
        ("null", "null"),
        ('{"k": "<b>"}', '{"k": "<b>"}'),
        ('日本 " \\', '日本 " \\'),
    ],
)
def test_a_string_is_untouched_but_for_its_lines(parse: Parse, value: str, expected: str) -> None:
    text = f"<function=add><parameter=s>{value}</parameter></function>"
    assert parse(text, QWEN_XML) == [("add", {"s": expected})]


@pytest.mark.parametrize(
    "text",
    [
        f"<function=missing>{BODY}</function>",
        "<function=add>hello</function>",
        "<function=add",
        "<function=add><parameter=a",
        "<function=" + "x" * 2000,
        "<add>hello</add>",
        "<add>",
        "<add></function>",
        "The <function=...> tag",
    ],
)
def test_what_is_no_call_is_given_back(parse: Parse, text: str) -> None:
    assert parse(text, QWEN_XML) == [text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<function=add>", "{"),
        ("<function=add>\n<parameter=a>\n1", "{"),
        ("<function=add><parameter=a>1</parameter>", '{"a": 1'),
        (
            "<function=add><parameter=a>1</parameter>\n<parameter=s>\none tw",
            '{"a": 1, "s": "one tw',
        ),
        ("<function=add><parameter=s>one</para", '{"s": "one'),
    ],
)
def test_cut_off(parse: Parse, text: str, expected: str) -> None:
    assert parse(text, QWEN_XML, is_cut=True) == [("add", expected)]


def test_openings_of_declared_names_only() -> None:
    assert {"<f>", "<function "} < slips(["f"]).keys()
    assert "<f>" not in slips(["g"])
