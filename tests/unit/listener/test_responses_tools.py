"""Tools of Responses requests."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects import responses_wire as wire
from luce.listener.dialects.responses_tools import (
    ClientTool,
    OfferedTools,
    custom_input,
    offered_tools,
)
from luce.listener.dialects.tool_offers import ToolOffer
from luce.text.call import LarkFormat, NamedTool, ToolSpec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def offered(*tools: dict[str, Any]) -> OfferedTools:
    return offered_tools(msgspec.convert(list(tools), list[wire.Tool]))


def test_functions() -> None:
    assert offered(
        {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True},
        {"type": "function", "name": "g", "parameters": None},
    ) == OfferedTools(
        ToolOffer(
            {
                "f": (ToolSpec("f", "d", SCHEMA, True), "tools[0].parameters"),
                "g": (ToolSpec("g"), "tools[1].parameters"),
            }
        ),
        {"f": ClientTool("f"), "g": ClientTool("g")},
    )


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    tools = offered(
        {"type": "custom", "name": "p", "description": "edit", "format": form},
        {"type": "custom", "name": "q", "format": {"type": "text"}},
    )
    patch, plain = tools.offer.specs
    assert all(tool.is_custom for tool in tools.client_tools.values())
    assert patch.description == "edit\n\nThe input must follow this lark grammar:\nstart: /x/"
    assert patch.parameters["required"] == ["input"]
    assert plain.description is None
    assert (patch.is_strict, plain.is_strict) == (True, False)
    assert patch.input_grammar == LarkFormat("start: /x/")
    assert tools.names["tools[0].input_grammar"] == "tools[0].format.definition"
    assert "tools[1].input_grammar" not in tools.names
    assert "pattern" not in patch.parameters["properties"]["input"]


def test_a_regex_of_a_custom_tool_is_a_strict_schema() -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "a|b"}
    tools = offered(
        {"type": "web_search"},
        {"type": "custom", "name": "p", "format": form},
    )
    (spec,) = tools.offer.specs
    assert spec.is_strict
    assert spec.parameters["properties"]["input"]["pattern"] == "^(?:a|b)$"
    assert spec.parameters["additionalProperties"] is False
    assert tools.names == {
        "tools[0].parameters": "tools[1].format",
        "tools[0].parameters.properties.input.pattern": "tools[1].format.definition",
    }


def test_what_is_left_out_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert offered({"type": "web_search"}, {"type": "x" * 99}).offer.specs == ()
        assert offered().offer.specs == ()
    (record,) = caplog.records
    assert record.types == "web_search," + "x" * 64 + "…"  # type: ignore[attr-defined]


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


TOOLS: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "p"},
    {"type": "function", "name": "g"},
]


def choosing(choice: Any) -> ToolOffer:
    given = msgspec.convert(choice, wire.ToolChoice | None)
    return offered_tools(msgspec.convert(TOOLS, list[wire.Tool]), given).offer


@pytest.mark.parametrize(
    ("choice", "ours"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "g"}, NamedTool("g")),
        ({"type": "custom", "name": "p"}, NamedTool("p")),
    ],
)
def test_choices_leave_all_tools_on_offer(choice: Any, ours: Any) -> None:
    offer = choosing(choice)
    assert offer.choice == ours
    assert [spec.name for spec in offer.specs] == ["f", "p", "g"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_the_only_ones(mode: str) -> None:
    named = [{"type": "function", "name": "g"}, {"type": "mcp"}, {"type": "custom", "name": "p"}]
    offer = choosing({"type": "allowed_tools", "mode": mode, "tools": named})
    assert offer.choice == mode
    assert [spec.name for spec in offer.specs] == ["p", "g"]
    assert offer.names["tools[1].parameters"] == "tools[3].parameters"


@pytest.mark.parametrize(
    ("choice", "error", "param"),
    [
        ({"type": "web_search"}, UnsupportedFeature, "tool_choice.type"),
        ({"type": "function"}, InvalidRequest, "tool_choice.name"),
        ({"type": "function", "name": "x"}, InvalidRequest, "tool_choice.name"),
        ({"type": "allowed_tools", "mode": "auto"}, InvalidRequest, "tool_choice.tools"),
        ({"type": "allowed_tools", "tools": []}, InvalidRequest, "tool_choice.mode"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]},
            InvalidRequest,
            "tool_choice.tools[0].name",
        ),
    ],
)
def test_choices_that_cannot_be(choice: Any, error: type[InvalidRequest], param: str) -> None:
    with pytest.raises(error) as caught:
        choosing(choice)
    assert caught.value.param == param


# --- namespaces --------------------------------------------------------------------------


def namespace(name: str, *tools: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools), **fields}


def test_tools_of_a_namespace_are_functions_with_its_name_in_front() -> None:
    inner = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}
    tools = offered(
        {"type": "function", "name": "f"},
        namespace("crm", inner, {"type": "custom", "name": "p"}, description="Customers."),
    )
    assert tools.client_tools == {
        "f": ClientTool("f"),
        "crm__f": ClientTool("f", "crm"),
        "crm__p": ClientTool("p", "crm", is_custom=True),
    }
    _, first, second = tools.offer.specs
    assert first == ToolSpec("crm__f", "Customers.\n\nd", SCHEMA)
    assert (second.name, second.description) == ("crm__p", None)
    assert tools.names["tools[1].parameters"] == "tools[1].tools[0].parameters"
    assert tools.names["tools[2].parameters"] == "tools[1].tools[1].format"


def test_what_a_namespace_says_is_told_also_where_its_tool_says_nothing() -> None:
    (spec,) = offered(
        namespace("n", {"type": "function", "name": "f"}, description="N")
    ).offer.specs
    assert spec.description == "N"


def test_makers_tools_in_a_namespace_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert offered(namespace("n", {"type": "web_search"}), namespace("m")).offer.specs == ()
    (record,) = caplog.records
    assert record.types == "web_search"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (namespace("", {"type": "function", "name": "f"}), "tools[1].name"),
        (namespace("n", {"type": "function"}), "tools[1].tools[0].name"),
        (namespace("n", namespace("m")), "tools[1].tools[0].type"),
        (namespace("n", {"type": "function", "name": "f"}), "tools[1].tools[0].name"),
        (
            namespace("m", {"type": "function", "name": "f", "parameters": {"type": "array"}}),
            "tools[1].tools[0].parameters.type",
        ),
    ],
)
def test_namespaces_that_cannot_be(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        offered({"type": "function", "name": "n__f"}, tool)
    assert caught.value.param == param


def test_choices_of_tools_in_a_namespace() -> None:
    tools = [
        {"type": "function", "name": "f"},
        namespace("n", {"type": "function", "name": "f"}, {"type": "custom", "name": "p"}),
        namespace("m", {"type": "function", "name": "g"}),
    ]

    def chosen(choice: dict[str, Any]) -> ToolOffer:
        given = msgspec.convert(choice, wire.ToolChoice)
        return offered_tools(msgspec.convert(tools, list[wire.Tool]), given).offer

    assert chosen({"type": "function", "name": "f"}).choice == NamedTool("f")
    one = {"type": "function", "name": "f", "namespace": "n"}
    assert chosen(one).choice == NamedTool("n__f")
    several = {"type": "allowed_tools", "mode": "auto"}
    allowed = chosen({**several, "tools": [{"type": "namespace", "name": "n"}]})
    assert [spec.name for spec in allowed.specs] == ["n__f", "n__p"]
    both = chosen({**several, "tools": [one, {"type": "namespace", "name": "m"}]})
    assert [spec.name for spec in both.specs] == ["n__f", "m__g"]
    with pytest.raises(InvalidRequest) as caught:
        chosen({**several, "tools": [{"type": "namespace", "name": "x"}]})
    assert caught.value.param == "tool_choice.tools[0].name"
