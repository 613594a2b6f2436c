"""Items of Responses requests become turns."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from luce.errors import InvalidRequest
from luce.listener.dialects.responses_prompt import conversation, sealed
from luce.listener.dialects.responses_wire import Item
from luce.text.call import ChatMessage

BILLING = "x-anthropic-billing-header: cch=1;"
USER = {"role": "user", "content": "hi"}
HI = ChatMessage("user", "hi")


def turns(*items: dict[str, Any], instructions: str | None = None) -> tuple[ChatMessage, ...]:
    return conversation(instructions, msgspec.convert(list(items), list[Item]))


def system(text: str, role: str = "system") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


def called(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def result(call_id: str, output: Any = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def call_of(call_id: str, arguments: Any = "{}", name: str = "f") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def thought(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", **fields}


def test_what_leads_is_one_system_turn() -> None:
    items = [system("b"), system("c", "developer"), USER]
    assert turns(*items, instructions="a") == (ChatMessage("system", "a\n\nb\n\nc"), HI)
    assert turns(system("b"), USER) == (ChatMessage("system", "b"), HI)


def test_late_notes_stay_where_they_are() -> None:
    assert turns(USER, system("late", "developer"), USER, instructions="a") == (
        ChatMessage("system", "a"),
        HI,
        ChatMessage("system", "late"),
        HI,
    )


def test_the_billing_header_is_left_out() -> None:
    assert turns(system(BILLING), USER, instructions=f"{BILLING}\na") == (
        ChatMessage("system", "a"),
        HI,
    )


def test_one_answer_is_one_turn() -> None:
    items = [USER, thought(content=[{"type": "reasoning_text", "text": "hm"}]), said("ok")]
    items += [called("1", arguments='{"a":1}'), called("2"), result("1"), result("2")]
    assert turns(*items) == (
        HI,
        ChatMessage(
            "assistant",
            "ok",
            {
                "reasoning_content": "hm",
                "tool_calls": [call_of("1", '{"a":1}'), call_of("2")],
            },
        ),
        ChatMessage("tool", "r", {"tool_call_id": "1"}),
        ChatMessage("tool", "r", {"tool_call_id": "2"}),
    )


def test_text_between_calls_belongs_to_their_turn() -> None:
    (turn, _) = turns(called("1"), said("and"), called("2"), result("1"))
    assert (turn.content, len(turn.extra["tool_calls"])) == ("and", 2)


def test_two_answers_are_two_turns() -> None:
    assert turns(said("a"), said("b")) == (
        ChatMessage("assistant", "a"),
        ChatMessage("assistant", "b"),
    )
    both = turns(said("a"), thought(summary=[{"type": "summary_text", "text": "s"}]), said("b"))
    assert [turn.extra for turn in both] == [{}, {"reasoning_content": "s"}]


def test_calls_without_text() -> None:
    (turn,) = turns(called("1"))
    assert turn == ChatMessage("assistant", None, {"tool_calls": [call_of("1")]})


def test_custom_calls_are_calls_of_one_text() -> None:
    call = {"type": "custom_tool_call", "call_id": "1", "name": "p", "input": "x"}
    output = {"type": "custom_tool_call_output", "call_id": "1", "output": "y"}
    assert turns(call, output) == (
        ChatMessage("assistant", None, {"tool_calls": [call_of("1", {"input": "x"}, "p")]}),
        ChatMessage("tool", "y", {"tool_call_id": "1"}),
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": [{"type": "reasoning_text", "text": "a"}], "encrypted_content": "x"}, "a"),
        ({"summary": [], "encrypted_content": sealed("hé")}, "hé"),
        ({"summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "gAAA"}, "s"),
        ({"summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "luce.%"}, "s"),
    ],
)
def test_what_can_be_read_of_reasoning(fields: dict[str, Any], text: str) -> None:
    (turn,) = turns(thought(**fields), said("x"))
    assert turn == ChatMessage("assistant", "x", {"reasoning_content": text})


def test_reasoning_that_cannot_be_read_is_none() -> None:
    assert turns(thought(summary=[], encrypted_content="gAAA"), USER) == (HI,)


def test_records_of_tools_that_ran_elsewhere_are_left_out() -> None:
    assert turns({"type": "web_search_call", "id": "ws_1", "status": "completed"}, USER) == (HI,)


def test_forms_of_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert turns({"role": "user", "content": parts}, refusal, result("1", parts)) == (
        ChatMessage("user", "ab"),
        ChatMessage("assistant", "no"),
        ChatMessage("tool", "ab", {"tool_call_id": "1"}),
    )


def test_places_are_counted_from_the_request() -> None:
    past = msgspec.convert([USER, said("a")], list[Item])
    bad = msgspec.convert([{"type": "item_reference", "id": "x"}], list[Item])
    with pytest.raises(InvalidRequest) as caught:
        conversation(None, [*past, *bad], num_past=2)
    assert caught.value.param == "input[0].type"
