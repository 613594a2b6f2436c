from __future__ import annotations

from typing import Any

import msgspec
import pytest

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects.anthropic_prompt import prompt_call
from luce.listener.dialects.anthropic_wire import MessagesRequest
from luce.text.call import ChatMessage, GenerationCall, NamedTool, ToolSpec

BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=8f3a;"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "Says it.", "input_schema": SCHEMA}
HI = ChatMessage("user", "hi")


def decoded(**fields: Any) -> GenerationCall:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return prompt_call(msgspec.convert(body, MessagesRequest))


def turns(role: str, *blocks: dict[str, Any]) -> tuple[ChatMessage, ...]:
    return decoded(messages=[{"role": role, "content": list(blocks)}]).messages


def text(part: str) -> dict[str, Any]:
    return {"type": "text", "text": part}


def result(content: Any = None, call_id: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bonn"}}
CALL = {
    "id": "toolu_1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Bonn"}},
}


# --- system ------------------------------------------------------------------------------


def test_system_comes_first_and_blocks_are_joined() -> None:
    messages = [
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "assistant", "content": "c"},
    ]
    assert decoded(system=[text("s"), text("t")], messages=messages).messages == (
        ChatMessage("system", "st"),
        ChatMessage("user", "ab"),
        ChatMessage("assistant", "c"),
    )


@pytest.mark.parametrize("system", [None, "", [], [text("")], BILLING, [text(BILLING)]])
def test_no_system_text_is_no_message(system: Any) -> None:
    assert decoded(system=system).messages == (HI,)


@pytest.mark.parametrize(
    "system",
    [
        [text(BILLING), text("be nice")],
        f"{BILLING}\nbe nice",
        [text(f"{BILLING}\n"), text("be nice")],
    ],
)
def test_the_billing_header_is_left_out(system: Any) -> None:
    assert decoded(system=system).messages[0] == ChatMessage("system", "be nice")


def test_the_header_within_a_line_is_text() -> None:
    quoted = f"what does {BILLING} mean?"
    assert decoded(system=quoted).messages[0].content == quoted


# --- turns -------------------------------------------------------------------------------


def test_an_empty_conversation_is_no_error() -> None:
    assert decoded(messages=[]).messages == ()


def test_a_turn_without_blocks_is_an_empty_turn() -> None:
    assert turns("user") == (ChatMessage("user", ""),)
    assert turns("assistant") == (ChatMessage("assistant", ""),)


def test_thinking_and_calls_of_the_assistant() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    assert turns("assistant", thought, text("let me see"), USE) == (
        ChatMessage("assistant", "let me see", {"reasoning_content": "hm", "tool_calls": [CALL]}),
    )
    assert turns("assistant", USE) == (ChatMessage("assistant", None, {"tool_calls": [CALL]}),)


def test_results_come_before_what_the_user_says() -> None:
    assert turns(
        "user", text("and now?"), result("rain"), result([text("su"), text("n")], "b")
    ) == (
        ChatMessage("tool", "rain", {"tool_call_id": "toolu_1"}),
        ChatMessage("tool", "sun", {"tool_call_id": "b"}),
        ChatMessage("user", "and now?"),
    )


def test_results_alone_are_no_user_turn() -> None:
    assert turns("user", result()) == (ChatMessage("tool", "", {"tool_call_id": "toolu_1"}),)


def test_a_system_turn_stays_where_it_is() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": [text(BILLING), text("5 left")]},
        {"role": "system", "content": BILLING},
        {"role": "user", "content": "hi"},
    ]
    assert decoded(messages=messages).messages == (HI, ChatMessage("system", "5 left"), HI)


def test_neighbours_of_one_role_stay_apart() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": [text("hi")]}]
    assert decoded(messages=messages).messages == (HI, HI)


def test_thinking_that_cannot_be_read_is_left_out() -> None:
    hidden = {"type": "redacted_thinking", "data": "x"}
    assert turns("assistant", hidden, text("a")) == (ChatMessage("assistant", "a"),)


# --- tools and thinking ------------------------------------------------------------------


def test_tools() -> None:
    strict = {"name": "now", "input_schema": {}, "type": "custom", "strict": True}
    call = decoded(tools=[WEATHER, strict])
    assert call.tools == (ToolSpec("weather", "Says it.", SCHEMA), ToolSpec("now", None, {}, True))
    assert call.client_names["tools[1].parameters"] == "tools[1].input_schema"
    assert (call.tool_choice, call.parallel_tool_calls) == ("auto", True)


@pytest.mark.parametrize(
    ("choice", "ours"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, NamedTool("weather")),
    ],
)
def test_tool_choice(choice: dict[str, Any], ours: Any) -> None:
    assert decoded(tools=[WEATHER], tool_choice=choice).tool_choice == ours


def test_one_call_at_a_time() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert not decoded(tools=[WEATHER], tool_choice=choice).parallel_tool_calls


def test_thinking() -> None:
    silent = decoded().reasoning
    assert silent is not None
    assert silent.enabled is False
    off = decoded(thinking={"type": "disabled"}).reasoning
    on = decoded(thinking={"type": "enabled", "budget_tokens": 2048}).reasoning
    assert off is not None
    assert on is not None
    assert (off.enabled, on.enabled, on.budget_tokens) == (False, True, 2048)


def test_effort_says_how_to_think_not_whether() -> None:
    effort = {"effort": "low"}
    adaptive = decoded(thinking={"type": "adaptive"}, output_config=effort).reasoning
    alone = decoded(output_config=effort).reasoning
    assert adaptive is not None
    assert alone is not None
    assert (adaptive.enabled, adaptive.effort, alone.enabled) == (True, "low", False)


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].input_schema"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
    ],
)
def test_what_would_change_the_prompt_and_is_not_served(fields: Any, param: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        decoded(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("fields", [{"mcp_servers": []}, {"output_config": {}}, {"tools": []}])
def test_what_asks_for_nothing_is_taken(fields: dict[str, Any]) -> None:
    assert decoded(**fields).messages == (HI,)


@pytest.mark.parametrize(
    ("role", "block", "param"),
    [
        ("user", {"type": "text"}, "text"),
        ("user", {"type": "document"}, "type"),
        ("user", USE, "type"),
        ("assistant", result("x"), "type"),
        ("user", {"type": "thinking", "thinking": "hm"}, "type"),
        ("assistant", {"type": "thinking"}, "thinking"),
        ("assistant", {**USE, "id": None}, "id"),
        ("assistant", {**USE, "name": None}, "name"),
        ("assistant", {**USE, "input": None}, "input"),
        ("user", {**result("x"), "tool_use_id": None}, "tool_use_id"),
        ("user", result([{"type": "image"}]), "content[0].type"),
        ("user", result([result("x")]), "content[0].type"),
        ("user", {"type": "tool_reference", "tool_name": "weather"}, "type"),
        ("user", result([{"type": "tool_reference"}]), "content[0].tool_name"),
        ("user", result([{"type": "tool_reference", "tool_name": "x"}]), "content[0].tool_name"),
        ("user", {"type": "tool_removal", "tool": {"type": "tool_reference"}}, "type"),
        ("system", {"type": "tool_addition"}, "tool"),
    ],
)
def test_a_wrong_block_is_named(role: str, block: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        turns(role, block)
    assert caught.value.param == f"messages[0].content[0].{param}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"thinking": {"type": 5}}, "thinking.type"),
    ],
)
def test_other_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoded(**fields)
    assert caught.value.param == param
