"""Messages and tools as templates expect them."""

from __future__ import annotations

from typing import Any

import pytest

from luce.text.call import ChatMessage, ToolSpec
from luce.text.channels import GEMMA, THINK
from luce.text.template_messages import message_dicts, tool_dict, tool_dicts
from luce.text.template_traits import TemplateTraits

KNOWS_ALL = TemplateTraits(has_tools=True, has_calls=True, has_reasoning=True, strings="</think>")
KNOWS_NONE = TemplateTraits()


def calls(*arguments: Any, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{index}", "function": {"name": "f", "arguments": given}, **fields}
        for index, given in enumerate(arguments)
    ]


def shape(*messages: ChatMessage, traits: TemplateTraits = KNOWS_ALL) -> list[dict[str, Any]]:
    return message_dicts(messages, traits)


def test_plain_turns_are_as_they_are() -> None:
    turns = shape(
        ChatMessage("system", "S"),
        ChatMessage("user", "U", {"name": "n"}),
        ChatMessage("user", None),
        ChatMessage("assistant", "A"),
    )
    assert turns == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U", "name": "n"},
        {"role": "user", "content": None},
        {"role": "assistant", "content": "A"},
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("{'a': 1,}", {"a": 1}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ('{"a": "cut o', {"_raw": '{"a": "cut o'}),
        ("[1]", {"_raw": "[1]"}),
        ("[" * 5000, {"_raw": "[" * 5000}),
        (7, {"_raw": 7}),
    ],
)
def test_arguments_are_objects(given: Any, expected: dict[str, Any]) -> None:
    (turn,) = shape(ChatMessage("assistant", None, {"tool_calls": calls(given)}))
    assert turn == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "type": "function",
                "id": "call_0",
                "function": {"name": "f", "arguments": expected},
            }
        ],
    }


def test_a_call_without_id() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    (turn,) = shape(ChatMessage("assistant", "x", {"tool_calls": [call]}))
    assert turn["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {}}}]


def test_no_calls_are_no_key() -> None:
    (turn,) = shape(ChatMessage("assistant", None, {"tool_calls": []}))
    assert turn == {"role": "assistant", "content": ""}


def test_results_know_their_tool() -> None:
    _, named, given, unknown, without = shape(
        ChatMessage("assistant", None, {"tool_calls": calls({})}),
        ChatMessage("tool", "r", {"tool_call_id": "call_0"}),
        ChatMessage("tool", "r", {"tool_call_id": "call_0", "name": "g"}),
        ChatMessage("tool", None, {"tool_call_id": "else"}),
        ChatMessage("tool", "r"),
    )
    assert named == {"role": "tool", "content": "r", "tool_call_id": "call_0", "name": "f"}
    assert given["name"] == "g"
    assert unknown == {"role": "tool", "content": "", "tool_call_id": "else"}
    assert without == {"role": "tool", "content": "r"}


def test_short_ids() -> None:
    traits = TemplateTraits(has_calls=True, has_short_ids=True)
    long_id = "call_0123456789abcdef01234567"
    first, result = shape(
        ChatMessage("assistant", "", {"tool_calls": [*calls({}), {**calls({})[0], "id": long_id}]}),
        ChatMessage("tool", "r", {"tool_call_id": long_id}),
        traits=traits,
    )
    ids = [call["id"] for call in first["tool_calls"]]
    assert ids == ["0000call0", "f01234567"]
    assert result["tool_call_id"] == "f01234567"


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"reasoning_content": "r"}, {"reasoning_content": "r"}),
        ({"reasoning": "r"}, {"reasoning_content": "r"}),
        ({"reasoning": "x", "reasoning_content": "r"}, {"reasoning_content": "r"}),
        ({"reasoning": "r", "reasoning_content": None}, {"reasoning_content": "r"}),
        ({"reasoning_content": None}, {}),
        ({"reasoning": {"effort": "x"}}, {}),
    ],
)
def test_reasoning_of_earlier_turns(extra: dict[str, Any], expected: dict[str, Any]) -> None:
    (turn,) = shape(ChatMessage("assistant", "A", extra))
    assert turn == {"role": "assistant", "content": "A", **expected}


class TestGuardedTags:
    """Tags that are control tokens, so that the guard hides them from the template."""

    CONTENT = "<think>\nhm\n</think>\n\nyes"

    def turn(self, traits: TemplateTraits, content: str = CONTENT, **extra: Any) -> dict[str, Any]:
        (turn,) = message_dicts([ChatMessage("assistant", content, extra)], traits, THINK)
        return turn

    def test_taken_out_for_a_template_that_would(self) -> None:
        assert self.turn(KNOWS_ALL) == {
            "role": "assistant",
            "content": "yes",
            "reasoning_content": "hm",
        }
        assert self.turn(KNOWS_ALL, "hm</think>yes")["reasoning_content"] == "hm"

    def test_left_out_for_a_template_that_drops_them(self) -> None:
        assert self.turn(TemplateTraits(strings="</think>")) == {
            "role": "assistant",
            "content": "yes",
        }

    def test_what_the_client_said_itself_wins(self) -> None:
        turn = self.turn(KNOWS_ALL, reasoning="r")
        assert (turn["content"], turn["reasoning_content"]) == ("yes", "r")

    def test_left_for_other_templates(self) -> None:
        assert self.turn(KNOWS_NONE)["content"] == self.CONTENT
        (turn,) = message_dicts([ChatMessage("assistant", self.CONTENT)], KNOWS_ALL)
        assert turn["content"] == self.CONTENT
        (turn,) = message_dicts([ChatMessage("assistant", self.CONTENT)], KNOWS_ALL, GEMMA)
        assert turn["content"] == self.CONTENT
        (turn,) = message_dicts([ChatMessage("user", self.CONTENT)], KNOWS_ALL, THINK)
        assert turn["content"] == self.CONTENT


def test_a_template_without_calls_gets_text() -> None:
    first, second, result = shape(
        ChatMessage("assistant", "Looking.", {"tool_calls": calls('{"é": 1}', {})}),
        ChatMessage("assistant", None, {"tool_calls": calls({})}),
        ChatMessage("tool", "r", {"tool_call_id": "call_0", "name": "f"}),
        traits=KNOWS_NONE,
    )
    block = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    full = '<tool_call>\n{"name": "f", "arguments": {"é": 1}}\n</tool_call>'
    assert first == {"role": "assistant", "content": f"Looking.\n{full}\n{block}"}
    assert second == {"role": "assistant", "content": block}
    assert result == {"role": "user", "content": "<tool_response>\nr\n</tool_response>"}


def test_the_clients_own_messages_are_not_changed() -> None:
    extra = {"tool_calls": calls("{}"), "reasoning": "r"}
    shape(ChatMessage("assistant", None, extra))
    assert extra == {"tool_calls": calls("{}"), "reasoning": "r"}


def test_tools() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert tool_dicts([ToolSpec("f", "does", parameters), ToolSpec("g")]) == [
        {
            "type": "function",
            "function": {"name": "f", "description": "does", "parameters": parameters},
        },
        {
            "type": "function",
            "function": {"name": "g", "parameters": {"type": "object", "properties": {}}},
        },
    ]


def test_tools_that_messages_tell_of_are_not_listed() -> None:
    later = ToolSpec("later", is_deferred=True)
    assert tool_dicts([later, ToolSpec("f")]) == tool_dicts([ToolSpec("f")])
    assert tool_dict(later)["function"]["name"] == "later"
