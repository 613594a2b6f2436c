"""Tools of Messages requests, which messages may add and remove."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects.anthropic_prompt import prompt_call
from luce.listener.dialects.anthropic_wire import MessagesRequest
from luce.text.call import GenerationCall, NamedTool, ToolSpec

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
SEARCH = {"name": "search", "input_schema": {}}
EDIT = {"name": "edit", "description": "Edits.", "input_schema": SCHEMA, "defer_loading": True}
DRAW = {"name": "draw", "input_schema": {}, "defer_loading": True}
USE = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}}
ASKED = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [USE]}]


def reference(name: str) -> dict[str, Any]:
    return {"type": "tool_reference", "tool_name": name}


def found(*content: dict[str, Any]) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": list(content)}
    return {"role": "user", "content": [block]}


def change(kind: str, tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "tool": tool}


def named(name: str) -> dict[str, Any]:
    return {"type": "tool_reference", "name": name}


def defined(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_definition", "definition": tool}


def system(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "system", "content": list(blocks)}


def decoded(*messages: dict[str, Any], **fields: Any) -> GenerationCall:
    body = {"messages": [*ASKED, *messages], "tools": [SEARCH, EDIT, DRAW], **fields}
    return prompt_call(msgspec.convert(body, MessagesRequest))


def names(call: GenerationCall) -> list[str]:
    return [tool.name for tool in call.tools]


def declarations(text: str | None) -> list[Any]:
    """The functions that a message tells of."""
    assert text is not None
    listed = text.partition("<tools>\n")[2].partition("\n</tools>")[0]
    return [json.loads(line)["function"] for line in listed.splitlines()]


def test_a_deferred_tool_does_not_exist_until_it_is_referred_to() -> None:
    call = decoded()
    assert names(call) == ["search"]
    assert [message.role for message in call.messages] == ["user", "assistant"]


def test_a_result_may_refer_to_tools() -> None:
    call = decoded(found(reference("draw"), reference("edit")))
    assert call.tools == (
        ToolSpec("search", None, {}),
        ToolSpec("edit", "Edits.", SCHEMA, is_deferred=True),
        ToolSpec("draw", None, {}, is_deferred=True),
    )
    result = call.messages[-1]
    assert result.role == "tool"
    assert declarations(result.content) == [
        {"name": "draw", "parameters": {}},
        {"name": "edit", "description": "Edits.", "parameters": SCHEMA},
    ]
    assert call.client_names["tools[1].parameters"] == "tools[1].input_schema"


def test_what_a_result_says_comes_before_what_it_found() -> None:
    (result,) = decoded(found(reference("edit"), {"type": "text", "text": "One."})).messages[2:]
    assert result.content is not None
    assert result.content.startswith("One.\n\n")
    assert [tool["name"] for tool in declarations(result.content)] == ["edit"]


def test_a_tool_stays_found() -> None:
    later = {"role": "user", "content": "and now?"}
    before, after = decoded(found(reference("edit"))), decoded(found(reference("edit")), later)
    assert after.tools == before.tools
    assert after.messages[:-1] == before.messages


def test_a_found_tool_may_be_chosen() -> None:
    choice = {"type": "tool", "name": "edit"}
    assert decoded(found(reference("edit")), tool_choice=choice).tool_choice == NamedTool("edit")
    with pytest.raises(InvalidRequest, match="deferred") as caught:
        decoded(tool_choice=choice)
    assert caught.value.param == "tool_choice.name"


def test_a_system_turn_adds_tools() -> None:
    new = {"name": "new", "input_schema": SCHEMA, "strict": True}
    added = [change("tool_addition", tool) for tool in (named("edit"), defined(new))]
    call = decoded(system({"type": "text", "text": "More."}, *added))
    assert names(call) == ["search", "edit", "new"]
    assert call.tools[2] == ToolSpec("new", None, SCHEMA, is_strict=True, is_deferred=True)
    where = "messages[2].content[2].tool.definition.input_schema"
    assert call.client_names["tools[2].parameters"] == where
    turn = call.messages[-1]
    assert turn.role == "system"
    assert turn.content is not None
    assert turn.content.startswith("More.\n\n")
    assert [tool["name"] for tool in declarations(turn.content)] == ["edit", "new"]


def test_a_system_turn_removes_tools() -> None:
    gone = [change("tool_removal", named(name)) for name in ("edit", "search")]
    call = decoded(found(reference("edit"), reference("draw")), system(*gone))
    assert names(call) == ["draw"]
    content = call.messages[-1].content
    assert content is not None
    assert content.endswith(": edit, search")
    again = decoded(system(*gone), system(change("tool_addition", named("search"))))
    assert names(again) == ["search"]


@pytest.mark.parametrize(
    ("block", "error", "param"),
    [
        (change("tool_addition", named("x")), InvalidRequest, "name"),
        (change("tool_addition", {"type": "tool_reference"}), InvalidRequest, "name"),
        (change("tool_addition", {"type": "tool_definition"}), InvalidRequest, "definition"),
        (
            change("tool_addition", defined({"name": "bash", "type": "bash_20250124"})),
            UnsupportedFeature,
            "definition.input_schema",
        ),
        (change("tool_addition", {"type": "mcp_toolset_reference"}), UnsupportedFeature, "type"),
        (change("tool_removal", named("x")), InvalidRequest, "name"),
        (change("tool_removal", defined(SEARCH)), UnsupportedFeature, "type"),
    ],
)
def test_changes_that_cannot_be(
    block: dict[str, Any], error: type[InvalidRequest], param: str
) -> None:
    with pytest.raises(error) as caught:
        decoded(system(block))
    assert caught.value.param == f"messages[2].content[0].tool.{param}"


def test_not_all_tools_may_be_deferred() -> None:
    with pytest.raises(InvalidRequest, match="defer_loading") as caught:
        decoded(tools=[EDIT, DRAW])
    assert caught.value.param == "tools"
