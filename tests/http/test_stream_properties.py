"""Whatever a model does, a stream leads to the answer that is given without one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import Any

from http_harness import events_of as data_of
from hypothesis import given
from hypothesis import strategies as st
from messages_client import message_of, named_events
from responses_client import response_of

from luce.listener.dialects.anthropic_messages import AnthropicMessages
from luce.listener.dialects.base import BodyEncoder, KeepsAlive, StreamEncoder
from luce.listener.dialects.openai_chat import OpenAIChat
from luce.listener.dialects.openai_completions import OpenAICompletions
from luce.listener.dialects.openai_responses import OpenAIResponses
from luce.listener.responses_store import ResponseStore
from luce.text.events import (
    ContentLogprob,
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


@st.composite
def said(draw: st.DrawFn) -> TextDelta:
    """Content, its tokens cut anywhere."""
    text = draw(TEXTS)
    raw = text.encode()
    cuts = sorted({0, len(raw), *draw(st.sets(st.integers(0, len(raw)), max_size=3))})
    numbers = draw(st.lists(st.floats(max_value=0), min_size=len(cuts), max_size=len(cuts)))
    top = ((b"\xff", -math.inf), (b"a", math.nan))
    entries = [
        ContentLogprob(raw[start:end], number, top)
        for (start, end), number in zip(pairwise(cuts), numbers, strict=False)
    ]
    return TextDelta(text, tuple(entries))


PARTS = st.one_of(
    said(),
    TEXTS.map(ReasoningDelta),
    st.tuples(st.sampled_from(["f", "patch"]), ARGUMENTS, st.integers(1, 5)),
)
REASONS = st.sampled_from(["stop", "length", "tool_calls"])
USAGE = TokenUsage(9, 4, 7, 2)
MESSAGES_BODY = b'{"max_tokens":5,"messages":[{"role":"user","content":"x"}]}'


def responses_body(summary: str | None, *, reports: bool) -> bytes:
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "patch"}]
    reasoning = {"effort": "low", "summary": summary}
    include = ["message.output_text.logprobs"] if reports else []
    body = {"input": "x", "tools": tools, "reasoning": reasoning, "include": include}
    return json.dumps(body).encode()


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
    reports=st.booleans(),
)
def test_responses(
    parts: list[Any], reason: str, silence: set[int], summary: str | None, reports: bool
) -> None:
    dialect = OpenAIResponses(ResponseStore(), clock_s=lambda: 5)
    call = dialect.decode(responses_body(summary, reports=reports))
    events = list(events_of(parts, reason, None))
    joined = response_of(named_events(streamed(dialect.stream_encoder(call), events, silence)))
    answer = whole(dialect.body_encoder(call), events)
    for response in (joined, answer):
        response["id"] = None
        for item in response["output"]:
            item["id"] = None
    assert joined == answer


def choices_of(events: list[Any]) -> Iterator[Any]:
    """The choices of a finished stream's chunks."""
    assert events[-1] == "[DONE]"
    for event in events[:-1]:
        yield from event["choices"]


@given(
    choices=st.lists(st.tuples(st.lists(PARTS, max_size=5), REASONS), min_size=1, max_size=3),
    reports=st.booleans(),
)
def test_chat(choices: list[tuple[list[Any], str]], reports: bool) -> None:
    dialect = OpenAIChat(clock_s=lambda: 5)
    body = {"messages": [{"role": "user", "content": "x"}], "n": len(choices), "logprobs": reports}
    call = dialect.decode(json.dumps(body).encode())
    stream, encoder, frames = dialect.stream_encoder(call), dialect.body_encoder(call), b""
    for index, (parts, reason) in enumerate(choices):
        for event in events_of(parts, reason, None):
            frames += stream.encode(event, index)
            encoder.add(event, index)
    joined = [_joined_choice() for _ in choices]
    for choice in choices_of(data_of(frames.decode())):
        _add_chunk(joined[choice["index"]], choice)
    for found, answer in zip(joined, json.loads(encoder.body())["choices"], strict=True):
        message = answer["message"]
        assert found["content"] == (message["content"] or "")
        assert found["reasoning"] == message.get("reasoning_content", "")
        assert found["finish_reason"] == answer["finish_reason"]
        calls = [call["function"]["arguments"] for call in message.get("tool_calls", [])]
        assert found["calls"] == calls
        assert found["logprobs"] == (answer["logprobs"] and answer["logprobs"]["content"])


def _joined_choice() -> dict[str, Any]:
    return {"content": "", "reasoning": "", "calls": [], "finish_reason": None, "logprobs": None}


def _add_chunk(joined: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice["delta"]
    joined["content"] += delta.get("content", "")
    joined["reasoning"] += delta.get("reasoning_content", "")
    for call in delta.get("tool_calls", ()):
        if call["index"] == len(joined["calls"]):
            joined["calls"].append("")
        joined["calls"][call["index"]] += call["function"]["arguments"]
    if choice["logprobs"] is not None:
        joined["logprobs"] = (joined["logprobs"] or []) + choice["logprobs"]["content"]
    joined["finish_reason"] = joined["finish_reason"] or choice["finish_reason"]


@given(deltas=st.lists(said(), max_size=5), logprobs=st.none() | st.integers(0, 20))
def test_completions(deltas: list[TextDelta], logprobs: int | None) -> None:
    dialect = OpenAICompletions(clock_s=lambda: 5)
    call = dialect.decode(json.dumps({"prompt": "x", "logprobs": logprobs}).encode())
    events = list(events_of(list(deltas), "stop", None))
    frames = b"".join(map(dialect.stream_encoder(call).encode, events))
    (answer,) = whole(dialect.body_encoder(call), events)["choices"]
    chunks = list(choices_of(data_of(frames.decode())))
    assert "".join(chunk["text"] for chunk in chunks) == answer["text"]
    if logprobs is None:
        assert {repr(chunk["logprobs"]) for chunk in [*chunks, answer]} == {"None"}
        return
    for name, values in answer["logprobs"].items():
        added = [value for chunk in chunks[:-1] for value in chunk["logprobs"][name]]
        assert added == values
        assert "Infinity" not in json.dumps(values)
    offsets = answer["logprobs"]["text_offset"]
    assert all(a <= b for a, b in pairwise(offsets))
    pieces = zip(offsets, answer["logprobs"]["tokens"], repeat(answer["text"]), strict=False)
    assert all(
        token.startswith("bytes:") or text[offset:].startswith(token)
        for offset, token, text in pieces
    )
