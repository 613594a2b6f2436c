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
from luce.listener.dialects.openai_responses import OpenAIResponses
from luce.listener.responses_store import ResponseStore
from luce.text.events import Started

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
WORDS = st.sampled_from(["text", "image", "tool_use", "reasoning", "system", "user", "required"])
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "role", "content"]), inner, max_size=3)
    ),
    max_leaves=4,
)


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
        pytest.param(AnthropicMessages(), body_of(**CLAUDE_CODE), id="messages"),
        pytest.param(OpenAIResponses(ResponseStore()), CODEX, id="responses"),
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
