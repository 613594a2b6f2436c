"""Real clients' requests with anything in any place: served or refused, never a bug of ours."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages_client import CLAUDE_CODE, body_of
from responses_client import CODEX, TEXT

from luce.errors import ApiError
from luce.listener.dialects.anthropic_messages import AnthropicMessages
from luce.listener.dialects.base import Dialect
from luce.listener.dialects.openai_chat import OpenAIChat
from luce.listener.dialects.openai_completions import OpenAICompletions
from luce.listener.dialects.openai_responses import OpenAIResponses
from luce.listener.responses_store import ResponseStore
from luce.text.events import Started

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
WORDS = st.sampled_from(
    [
        *("text", "image", "tool_use", "reasoning", "system", "user", "required", "none"),
        *("json_object", "json_schema", "allowed_tools", "function", "custom", "object", "a+"),
    ]
)
KEYS = st.sampled_from(
    ["type", "text", "role", "content", "schema", "properties", "pattern", "enum", "$ref", "name"]
)
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=4,
)


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^a+$"}, "b": {"enum": [1, "x", None]}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
USER = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "s"}, USER],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    },
    "response_format": FORMAT,
    "logprobs": True,
    "top_logprobs": 2,
    "min_tokens": 2,
    "max_tokens": 9,
    "stop": ["x"],
    "logit_bias": {"5": 1},
    "reasoning_effort": "low",
}
COMPLETION: dict[str, Any] = {
    "prompt": ["hi"],
    "response_format": FORMAT,
    "logprobs": 3,
    "min_tokens": 2,
    "seed": 0,
}
MESSAGE: dict[str, Any] = {
    **body_of(**CLAUDE_CODE),
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}},
}
RESPONSE: dict[str, Any] = {
    **CODEX,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "tool_choice": {"type": "custom", "name": "apply_patch"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 3,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All paths into a JSON value but the empty one."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = value.keys()
    elif isinstance(value, list):
        keys = range(len(value))
    below = [places(value[key], (*path, key)) for key in keys]
    return [*([path] if path else []), *(place for found in below for place in found)]


def mutated(data: st.DataObject, request: dict[str, Any]) -> bytes:
    request = copy.deepcopy(request)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(places(request)))
        node: Any = request
        for key in path:
            node = node[key]
        if data.draw(st.booleans()):
            node[last] = data.draw(VALUES)
        else:
            del node[last]
        if not request:
            break
    return json.dumps(request).encode()


def refusal(dialect: Dialect, body: bytes) -> ApiError | None:
    """Why it is not served; anything but one of our errors fails the test."""
    try:
        call = dialect.decode(body)
        TEXT.prepare(call)
        dialect.stream_encoder(call).encode(Started("m", 0, 1))
    except ApiError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("dialect", "request_body"),
    [
        pytest.param(OpenAIChat(), CHAT, id="chat"),
        pytest.param(OpenAICompletions(), COMPLETION, id="completions"),
        pytest.param(AnthropicMessages(), MESSAGE, id="messages"),
        pytest.param(OpenAIResponses(ResponseStore()), RESPONSE, id="responses"),
    ],
)
@given(data=st.data())
def test_mutated_requests(
    dialect: Dialect, request_body: dict[str, Any], data: st.DataObject
) -> None:
    error = refusal(dialect, mutated(data, request_body))
    if error is not None:
        assert error.status in (400, 404)
        assert json.loads(dialect.error_body(error))["error"]["message"]
