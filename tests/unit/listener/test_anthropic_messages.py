"""The Messages dialect: requests to calls, events to blocks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.errors import InternalError, InvalidRequest, WorkerLost
from luce.listener.dialects.anthropic_messages import (
    AnthropicMessages,
    MessageBodyEncoder,
    MessageStreamEncoder,
)
from luce.text.call import GenerationCall
from luce.text.events import (
    Failed,
    Finished,
    GenEvent,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolCallStarted,
)

USAGE = TokenUsage(prompt_tokens=9, cached_tokens=4, completion_tokens=7, reasoning_tokens=2)
CALL_ID = "call_00112233445566778899aabb"


def decoded(**fields: Any) -> GenerationCall:
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **fields}
    return AnthropicMessages().decode(json.dumps(body).encode())


def frames(*events: GenEvent) -> list[tuple[str, Any]]:
    encoder = MessageStreamEncoder("msg_1")
    text = b"".join(map(encoder.encode, events)).decode()
    blocks = [block.split("\n") for block in text.split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(data[6:])) for name, data in blocks]


def body(*events: GenEvent) -> Any:
    encoder = MessageBodyEncoder("msg_1")
    for event in events:
        encoder.add(event)
    return json.loads(encoder.body())


def test_the_call() -> None:
    call = decoded(
        model="m", stream=True, stop_sequences=["a", "", "a"], temperature=0.5, top_k=3, seed=-1
    )
    assert (call.model, call.stream, call.max_tokens, call.stop) == ("m", True, 5, ("a",))
    assert (call.sampling.temperature, call.sampling.top_k) == (0.5, 3)
    assert call.sampling.seed == 2**64 - 1


@pytest.mark.parametrize("name", ["max_tokens", "messages"])
def test_what_is_required(name: str) -> None:
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    del body[name]
    with pytest.raises(InvalidRequest, match=f"{name} is required") as caught:
        AnthropicMessages().decode(json.dumps(body).encode())
    assert caught.value.param == name


def test_b37_text_call_newline_call_text() -> None:
    events = frames(
        Started("m", 4, 9),
        TextDelta("ok"),
        ToolCallStarted(0, CALL_ID, "f"),
        ToolCallDelta(0, '{"a"'),
        ToolCallDelta(0, ":1}"),
        TextDelta("\n"),
        ToolCallStarted(1, "call_1", "f"),
        ToolCallDelta(1, "{}"),
        TextDelta("done"),
        Finished("tool_calls", USAGE),
    )
    inner = events[2:-2]
    shown = [(name.removeprefix("content_block_"), data["index"]) for name, data in inner]
    delta, stop = "delta", "stop"
    assert shown == [
        *[("start", 0), (delta, 0), (stop, 0)],
        *[("start", 1), (delta, 1), (delta, 1), (stop, 1)],
        *[("start", 2), (delta, 2), (stop, 2)],
        *[("start", 3), (delta, 3), (stop, 3)],
        *[("start", 4), (delta, 4), (stop, 4)],
    ]
    assert inner[3][1]["content_block"] == {
        "type": "tool_use",
        "id": "toolu_00112233445566778899aabb",
        "name": "f",
        "input": {},
    }
    assert inner[4][1]["delta"] == {"type": "input_json_delta", "partial_json": '{"a"'}
    assert events[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_two_calls_in_a_row_are_two_blocks() -> None:
    events = (
        Started("m", 0, 1),
        ToolCallStarted(0, "call_a", "f"),
        ToolCallStarted(1, "call_b", "g"),
        ToolCallDelta(1, "{}"),
        Finished("tool_calls", USAGE),
    )
    starts = [data for name, data in frames(*events) if name == "content_block_start"]
    assert [start["index"] for start in starts] == [0, 1]
    assert [block["input"] for block in body(*events)["content"]] == [{}, {}]


def test_thinking_is_signed_before_it_is_closed() -> None:
    events = frames(
        Started("m", 0, 1), ReasoningDelta("hm"), TextDelta("x"), Finished("stop", USAGE)
    )
    inner = [data for name, data in events if name.startswith("content_block")]
    assert inner[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert inner[2]["delta"]["type"] == "signature_delta"
    assert inner[2]["delta"]["signature"]
    assert inner[3] == {"type": "content_block_stop", "index": 0}


def test_usage_stands_at_both_ends() -> None:
    first, *_, delta, _ = frames(Started("m", 4, 9), Finished("length", USAGE))
    start = first[1]["message"]["usage"]
    assert (start["input_tokens"], start["cache_read_input_tokens"]) == (5, 4)
    assert start["output_tokens"] == 0
    assert delta[1]["usage"]["output_tokens"] == 7
    assert delta[1]["usage"]["output_tokens_details"] == {"thinking_tokens": 2}
    assert delta[1]["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", '"x"'])
def test_input_that_is_no_object_is_kept_raw(arguments: str) -> None:
    (block,) = body(
        Started("m", 0, 1),
        ToolCallStarted(0, "call_a", "f"),
        ToolCallDelta(0, arguments),
        Finished("length", USAGE),
    )["content"]
    assert block["input"] == {"_raw": arguments}


def test_a_stop_string_behind_calls_is_no_stop_sequence() -> None:
    message = body(
        Started("m", 0, 1),
        ToolCallStarted(0, "call_a", "f"),
        ToolCallDelta(0, "{}"),
        Finished("tool_calls", USAGE, "x"),
    )
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)


def test_failures() -> None:
    lost = Failed(WorkerLost("gone"))
    assert frames(Started("m", 0, 1), TextDelta("x"), lost)[-1] == (
        "error",
        {
            "type": "error",
            "error": {
                "type": "overloaded_error",
                "message": "gone",
                "code": "worker_lost",
                "param": None,
            },
        },
    )
    with pytest.raises(WorkerLost):
        body(Started("m", 0, 1), lost)
    with pytest.raises(InternalError):
        body(Started("m", 0, 1))
