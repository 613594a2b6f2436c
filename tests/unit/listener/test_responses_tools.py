"""Tools of Responses requests."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from luce.errors import UnsupportedFeature
from luce.listener.dialects import responses_wire as wire
from luce.listener.dialects.responses_tools import (
    OfferedTools,
    custom_input,
    offered_tools,
    tool_choice,
)
from luce.text.call import ToolSpec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def offered(*tools: dict[str, Any]) -> OfferedTools:
    return offered_tools(msgspec.convert(list(tools), list[wire.Tool]))


def test_functions() -> None:
    assert offered(
        {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True},
        {"type": "function", "name": "g", "parameters": None},
    ) == OfferedTools((ToolSpec("f", "d", SCHEMA), ToolSpec("g")), frozenset())


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    tools = offered(
        {"type": "custom", "name": "p", "description": "edit", "format": form},
        {"type": "custom", "name": "q", "format": {"type": "text"}},
    )
    patch, plain = tools.specs
    assert tools.custom == {"p", "q"}
    assert patch.description == "edit\n\nThe input must follow this lark grammar:\nstart: /x/"
    assert patch.parameters["required"] == ["input"]
    assert plain.description is None


def test_what_is_left_out_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert offered({"type": "web_search"}, {"type": "x" * 99}).specs == ()
        assert offered().specs == ()
    (record,) = caplog.records
    assert record.types == "web_search," + "x" * 64  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "é\\n"}', "é\n"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"other": "x"}', '{"other": "x"}'),
        ('{"input": "cut', '{"input": "cut'),
        ("[]", "[]"),
        ("", ""),
    ],
)
def test_the_input_of_a_custom_tool(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text


def test_choices() -> None:
    assert (tool_choice(None), tool_choice("auto"), tool_choice("none")) == ("auto", "auto", "none")
    for choice in ("required", wire.ChosenTool("function", "f"), wire.ChosenTool("web_search")):
        with pytest.raises(UnsupportedFeature) as caught:
            tool_choice(choice)  # type: ignore[arg-type]
        assert caught.value.param == "tool_choice"
