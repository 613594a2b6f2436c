"""How much of everything a request may hold, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.errors import InvalidRequest
from luce.listener.dialects.anthropic_messages import AnthropicMessages
from luce.listener.dialects.base import Dialect
from luce.listener.dialects.openai_chat import OpenAIChat
from luce.listener.dialects.openai_completions import OpenAICompletions
from luce.listener.dialects.openai_responses import OpenAIResponses
from luce.listener.responses_store import ResponseStore

USER = {"role": "user", "content": "x"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CHAT: tuple[Dialect, dict[str, Any]] = (OpenAIChat(), {"messages": [USER]})
COMPLETIONS: tuple[Dialect, dict[str, Any]] = (OpenAICompletions(), {"prompt": "x"})
RESPONSES: tuple[Dialect, dict[str, Any]] = (OpenAIResponses(ResponseStore()), {"input": "x"})
MESSAGES: tuple[Dialect, dict[str, Any]] = (
    AnthropicMessages(),
    {"messages": [USER], "max_tokens": 5},
)
ALL = [CHAT, COMPLETIONS, RESPONSES, MESSAGES]
TEMPLATED = [CHAT, RESPONSES, MESSAGES]


def refused(dialect: Dialect, body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        dialect.decode(json.dumps(body).encode())
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(("dialect", "base"), ALL)
@pytest.mark.parametrize("many", [False, True])
def test_stop_strings(dialect: Dialect, base: dict[str, Any], many: bool) -> None:
    field = "stop_sequences" if many else "stop"
    long, longest = "x" * 4097, "x" * 4096
    param = "stop_sequences[0]" if many else "stop"
    assert refused(dialect, {**base, field: [long] if many else long}).param == param
    call = dialect.decode(json.dumps({**base, field: [longest]}).encode())
    assert call.stop == (longest,)


@pytest.mark.parametrize(
    ("dialect", "base", "field", "item"),
    [
        (*CHAT, "messages", USER),
        (*MESSAGES, "messages", USER),
        (*RESPONSES, "input", USER),
        (*CHAT, "tools", {"function": {"name": "f"}}),
        (*MESSAGES, "tools", TOOL),
        (*RESPONSES, "tools", {"type": "function", "name": "f"}),
    ],
)
def test_items(dialect: Dialect, base: dict[str, Any], field: str, item: Any) -> None:
    error = refused(dialect, {**base, field: [item] * 10_001})
    assert error.param == field
    assert "10000" in error.message


@pytest.mark.parametrize(("dialect", "base"), [CHAT, MESSAGES])
def test_parts_of_a_message(dialect: Dialect, base: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "x"}] * 10_001
    error = refused(dialect, {**base, "messages": [{"role": "user", "content": content}]})
    assert error.param == "messages[0].content"


@pytest.mark.parametrize(("dialect", "base"), TEMPLATED)
@pytest.mark.parametrize("value", ["x" * 2**20, ["x"] * 400_000])
def test_template_variables(dialect: Dialect, base: dict[str, Any], value: Any) -> None:
    error = refused(dialect, {**base, "chat_template_kwargs": {"a": value}})
    assert error.param == "chat_template_kwargs"
    assert str(2**20) in error.message
    fits = {**base, "chat_template_kwargs": {"a": "x" * 2**19}}
    assert dialect.decode(json.dumps(fits).encode()).template_kwargs["a"]


@pytest.mark.parametrize(("dialect", "base"), ALL)
def test_strings_of_a_body(dialect: Dialect, base: dict[str, Any]) -> None:
    error = refused(dialect, {**base, "anything": ["x"] * 500_001})
    assert "500000 strings" in error.message
    dialect.decode(json.dumps({**base, "anything": 'a "quoted" text ' * 300_000}).encode())


@pytest.mark.parametrize(("dialect", "base"), ALL)
@pytest.mark.parametrize("item", [1, [], {}])
def test_values_of_a_body(dialect: Dialect, base: dict[str, Any], item: Any) -> None:
    error = refused(dialect, {**base, "anything": [item] * 1_000_001})
    assert "1000000 values" in error.message
    dialect.decode(json.dumps({**base, "anything": "much, longer, text " * 300_000}).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", {}),
        ("tools", 0),
        ("tools", ""),
        ("tool_choice", 5),
        ("top_logprobs", "x"),
        ("parallel_tool_calls", 3),
        ("user", 5),
        ("store", "x"),
        ("metadata", 5),
    ],
)
def test_fields_of_the_wrong_type(field: str, value: Any) -> None:
    assert refused(CHAT[0], {**CHAT[1], field: value}).param == field


def test_an_unknown_role_is_told_the_known_ones() -> None:
    error = refused(CHAT[0], {"messages": [{"role": "bot", "content": "x"}]})
    assert error.param == "messages[0].role"
    assert "system, developer, user, assistant, tool, not 'bot'" in error.message


def test_a_refusal_in_the_history_is_what_was_said() -> None:
    said = {"role": "assistant", "content": None, "refusal": "I will not."}
    call = CHAT[0].decode(json.dumps({"messages": [USER, said]}).encode())
    assert call.messages[1].content == "I will not."


@pytest.mark.parametrize("depth", [1100, 5000])
def test_deep_template_variables(depth: int) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":%b%b}}'
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        CHAT[0].decode(body % (b"[" * depth, b"]" * depth))
