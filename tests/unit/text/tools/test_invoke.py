"""`<invoke>`, plain and in DeepSeek's dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from luce.text.tools.invoke import DSML, INVOKE

Parse = Callable[..., list[Any]]


@pytest.mark.parametrize(
    "text",
    [
        '<function_calls>\n<invoke name="add">\n<parameter name="a">1</parameter>\n</invoke>\n'
        "</function_calls>",
        '<invoke name="add"><parameter name="a">1</parameter></invoke>',
        '<invoke tool="add"><parameter name="a">1</parameter></invoke>',
        '<tool_call><invoke name="add"><parameter name="a">1</parameter></invoke></tool_call>',
        '<invoke name="add">{"a": 1}</invoke>',
        '<invoke name="add"><parameter name="a">1</function_calls>',
    ],
)
def test_plain(parse: Parse, text: str) -> None:
    assert parse(text, INVOKE) == [("add", {"a": 1})]


@pytest.mark.parametrize("block", ["function_calls", "tool_calls"])
def test_dsml_says_what_is_a_string(parse: Parse, block: str) -> None:
    text = (
        f'Hm.\n\n<｜DSML｜{block}>\n<｜DSML｜invoke name="add">\n'
        '<｜DSML｜parameter name="s" string="true">5</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="l" string="false">[5]</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="get">\n</｜DSML｜invoke>\n'
        f"</｜DSML｜{block}>"
    )
    assert parse(text, DSML) == ["Hm.", ("add", {"s": "5", "l": [5]}), ("get", {})]


def test_dsml_values_that_are_no_json_are_strings(parse: Parse) -> None:
    text = (
        '<｜DSML｜invoke name="add"><｜DSML｜parameter name="l" string="false">oops'
        "</｜DSML｜parameter></｜DSML｜invoke>"
    )
    assert parse(text, DSML) == [("add", {"l": "oops"})]


@pytest.mark.parametrize(
    "text",
    [
        '<function_calls><invoke name="missing"></invoke></function_calls>',
        "<invoke it></invoke>",
        "<function_calls> no",
    ],
)
def test_what_is_no_call_is_given_back(parse: Parse, text: str) -> None:
    assert parse(text, INVOKE) == [text]
