"""Forms of a conversation that are tried when a template refuses it."""

from __future__ import annotations

from typing import Any, ClassVar

from luce.text.message_forms import Message, fallback_forms


def turn(role: str, content: str | None, **extra: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **extra}


def test_a_conversation_without_irregularities_has_no_other_form() -> None:
    assert list(fallback_forms([turn("user", "a"), turn("assistant", "b")])) == []


def test_neighbours_are_joined_first() -> None:
    messages = [turn("user", "a"), turn("user", "b"), turn("assistant", "c")]
    assert list(fallback_forms(messages)) == [[turn("user", "a\n\nb"), turn("assistant", "c")]]


def test_system_turns_become_user_turns_second() -> None:
    messages = [turn("system", "S"), turn("system", "T"), turn("user", "u")]
    assert list(fallback_forms(messages)) == [
        [turn("system", "S\n\nT"), turn("user", "u")],
        [turn("user", "S\n\nT\n\nu")],
    ]


def test_a_late_system_turn_stays_in_its_place() -> None:
    messages = [turn("user", "u"), turn("assistant", "a"), turn("developer", "note")]
    assert list(fallback_forms(messages)) == [
        [turn("user", "u"), turn("assistant", "a"), turn("user", "note")]
    ]


def test_null_content_becomes_empty_text() -> None:
    call = turn("assistant", None, tool_calls=[{}])
    assert list(fallback_forms([call])) == [[{**call, "content": ""}]]


def test_turns_with_more_to_them_are_not_joined() -> None:
    messages = [
        turn("assistant", "a", tool_calls=[{}]),
        turn("assistant", "b"),
        turn("tool", "1"),
        turn("tool", "2"),
        turn("user", "x", name="Ann"),
        turn("user", "y"),
    ]
    assert list(fallback_forms(messages)) == []


def test_the_given_messages_are_not_changed() -> None:
    messages = [turn("system", "S"), turn("user", "a"), turn("user", None)]
    copy = [dict(message) for message in messages]
    list(fallback_forms(messages))
    assert messages == copy


class TestOneCallATurn:
    """For templates that take one call in a turn."""

    CALLS: ClassVar[list[dict[str, Any]]] = [
        {"id": "a", "function": {}},
        {"id": "b", "function": {}},
    ]

    def form(self, *messages: Message) -> list[Message]:
        return next(fallback_forms(messages))

    def test_by_id(self) -> None:
        first, second = self.CALLS
        assert self.form(
            {"role": "assistant", "content": "x", "tool_calls": self.CALLS},
            {"role": "tool", "content": "rb", "tool_call_id": "b"},
            {"role": "tool", "content": "ra", "tool_call_id": "a"},
            {"role": "tool", "content": "more", "tool_call_id": "c"},
            {"role": "user", "content": "u"},
        ) == [
            {"role": "assistant", "content": "x", "tool_calls": [first]},
            {"role": "tool", "content": "ra", "tool_call_id": "a"},
            {"role": "assistant", "content": "", "tool_calls": [second]},
            {"role": "tool", "content": "rb", "tool_call_id": "b"},
            {"role": "tool", "content": "more", "tool_call_id": "c"},
            {"role": "user", "content": "u"},
        ]

    def test_by_order(self) -> None:
        calls = [{"function": {"name": "f"}}, {"function": {"name": "g"}}]
        assert self.form(
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2"},
        ) == [
            {"role": "assistant", "content": "", "tool_calls": [calls[0]]},
            {"role": "tool", "content": "1"},
            {"role": "assistant", "content": "", "tool_calls": [calls[1]]},
            {"role": "tool", "content": "2"},
        ]

    def test_one_call_is_left_alone(self) -> None:
        turn = {"role": "assistant", "content": "", "tool_calls": self.CALLS[:1]}
        assert list(fallback_forms([turn, {"role": "tool", "content": "r"}])) == []
