from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.errors import InternalError, InvalidRequest, WorkerLost
from luce.listener.dialects.openai_completions import OpenAICompletions
from luce.listener.dialects.openai_completions_wire import CompletionRequest
from luce.text.call import GenerationCall
from luce.text.events import (
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)

DIALECT = OpenAICompletions(clock_s=lambda: 1234)
USAGE = TokenUsage(prompt_tokens=7, cached_tokens=4, completion_tokens=2)


def decode(prompt: Any = "x", **fields: Any) -> GenerationCall:
    return DIALECT.decode(json.dumps({"prompt": prompt, **fields}).encode())


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", ("",)),
        ("Hi", ("Hi",)),
        (["Hi"], ("Hi",)),
        (["a", "b"], ("a", "b")),
        ([5, 6], ((5, 6),)),
        ([[5, 6], [7]], ((5, 6), (7,))),
    ],
)
def test_forms_of_prompts(prompt: Any, expected: Any) -> None:
    call = decode(prompt)
    assert call.raw_prompts == expected
    assert call.messages == ()
    assert call.reasoning is None
    assert call.num_choices == len(expected)


def test_max_tokens() -> None:
    assert decode().max_tokens == 16
    assert decode(max_tokens=5).max_tokens == 5
    assert decode(max_completion_tokens=6).max_tokens == 6


def test_choices_are_told_apart_and_prompts_counted_once() -> None:
    call = decode(["a", "b"], n=2, stream_options={"include_usage": True})
    stream, whole = DIALECT.stream_encoder(call), DIALECT.body_encoder(call)
    chunks: list[Any] = []
    for choice in (0, 2, 1, 3):
        for event in (Started("m", 4), TextDelta(f"text {choice}"), Finished("stop", USAGE)):
            whole.add(event, choice)
            frames = stream.encode(event, choice).decode().split("\n\n")
            chunks += [frame.removeprefix("data: ") for frame in frames if frame]
    assert chunks.pop() == "[DONE]"
    body = json.loads(whole.body())
    assert [c["text"] for c in body["choices"]] == [f"text {i}" for i in range(4)]
    *texts, usage = map(json.loads, chunks)
    assert usage["usage"] == body["usage"]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (14, 8)
    assert [c["choices"][0]["index"] for c in texts] == [0, 0, 2, 2, 1, 1, 3, 3]


def test_failure() -> None:
    failed = Failed(WorkerLost("gone."))
    frames = DIALECT.stream_encoder(decode()).encode(failed)
    assert frames.endswith(b"data: [DONE]\n\n")
    assert b'"code":"worker_lost"' in frames
    encoder = DIALECT.body_encoder(decode())
    with pytest.raises(WorkerLost):
        encoder.add(failed)
    with pytest.raises(InternalError):
        encoder.body()


@pytest.mark.parametrize("event", [ReasoningDelta("x"), ToolCallDelta(0, "{}")])
def test_events_that_raw_prompts_do_not_have_are_not_dropped(event: Any) -> None:
    with pytest.raises(InternalError):
        DIALECT.stream_encoder(decode()).encode(event)
    with pytest.raises(InternalError):
        DIALECT.body_encoder(decode()).add(event)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(CompletionRequest.__struct_fields__), JSON, max_size=3))
def test_any_json_in_any_field_is_a_call_or_an_invalid_request(fields: dict[str, Any]) -> None:
    try:
        call = DIALECT.decode(json.dumps({"prompt": "x", **fields}).encode())
    except InvalidRequest:
        return
    assert call.raw_prompts
