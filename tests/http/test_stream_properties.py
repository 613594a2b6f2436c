"""Whatever a model does, a stream leads to the answer that is given without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from messages_client import message_of, named_events
from responses_client import response_of

from luce.listener.dialects.anthropic_messages import AnthropicMessages
from luce.listener.dialects.base import BodyEncoder, KeepsAlive, StreamEncoder
from luce.listener.dialects.openai_responses import OpenAIResponses
from luce.listener.responses_store import ResponseStore
from luce.text.events import (
    Finished,
    GenEvent,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolCallStarted,
)

TEXTS = st.text(min_size=1, max_size=6)
ARGUMENTS = st.dictionaries(TEXTS, TEXTS | st.integers(), max_size=3).map(json.dumps)
PARTS = st.one_of(
    TEXTS.map(TextDelta),
    TEXTS.map(ReasoningDelta),
    st.tuples(st.sampled_from(["f", "patch"]), ARGUMENTS, st.integers(1, 5)),
)
REASONS = st.sampled_from(["stop", "length", "tool_calls"])
USAGE = TokenUsage(9, 4, 7, 2)
MESSAGES_BODY = b'{"max_tokens":5,"messages":[{"role":"user","content":"x"}]}'


def responses_body(summary: str | None) -> bytes:
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "patch"}]
    reasoning = {"effort": "low", "summary": summary}
    return json.dumps({"input": "x", "tools": tools, "reasoning": reasoning}).encode()


def events_of(parts: list[Any], reason: Any, stop: str | None) -> Iterator[GenEvent]:
    yield Started("m", 4, 9)
    num_calls = 0
    for part in parts:
        if not isinstance(part, tuple):
            yield part
            continue
        name, arguments, width = part
        yield ToolCallStarted(num_calls, f"call_{num_calls:024x}", name)
        for start in range(0, len(arguments), width):
            yield ToolCallDelta(num_calls, arguments[start : start + width])
        num_calls += 1
    yield Finished(reason, USAGE, stop)


def streamed(encoder: StreamEncoder, events: list[GenEvent], silence: set[int]) -> str:
    assert isinstance(encoder, KeepsAlive)
    frames: list[bytes] = []
    for index, event in enumerate(events):
        if index in silence and index > 0:
            frames.append(encoder.keep_alive())
        frames.append(encoder.encode(event))
    return b"".join(frames).decode()


def whole(encoder: BodyEncoder, events: list[GenEvent]) -> Any:
    for event in events:
        encoder.add(event)
    return json.loads(encoder.body())


@given(
    parts=st.lists(PARTS, max_size=8),
    reason=REASONS,
    stop=st.none() | TEXTS,
    silence=st.sets(st.integers(1, 20), max_size=4),
)
def test_messages(parts: list[Any], reason: str, stop: str | None, silence: set[int]) -> None:
    dialect = AnthropicMessages()
    call = dialect.decode(MESSAGES_BODY)
    events = list(events_of(parts, reason, stop))
    joined = message_of(named_events(streamed(dialect.stream_encoder(call), events, silence)))
    assert {**joined, "id": None} == {**whole(dialect.body_encoder(call), events), "id": None}
    kinds = [block["type"] for block in joined["content"]]
    assert all(kind == "tool_use" or kind != after for kind, after in pairwise(kinds))


@given(
    parts=st.lists(PARTS, max_size=8),
    reason=REASONS,
    silence=st.sets(st.integers(1, 20), max_size=4),
    summary=st.sampled_from([None, "auto"]),
)
def test_responses(parts: list[Any], reason: str, silence: set[int], summary: str | None) -> None:
    dialect = OpenAIResponses(ResponseStore(), clock_s=lambda: 5)
    call = dialect.decode(responses_body(summary))
    events = list(events_of(parts, reason, None))
    joined = response_of(named_events(streamed(dialect.stream_encoder(call), events, silence)))
    answer = whole(dialect.body_encoder(call), events)
    for response in (joined, answer):
        response["id"] = None
        for item in response["output"]:
            item["id"] = None
    assert joined == answer
