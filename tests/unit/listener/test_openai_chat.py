from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.errors import InternalError, InvalidRequest, UnsupportedFeature, WorkerLost
from luce.listener.dialects.openai_chat import OpenAIChat
from luce.listener.dialects.openai_wire import ChatRequest
from luce.text.call import ChatMessage, GenerationCall, ToolSpec
from luce.text.events import (
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolCallStarted,
)
from luce.text.reasoning import ReasoningRequest

DIALECT = OpenAIChat(clock_s=lambda: 1234)
USAGE = TokenUsage(prompt_tokens=7, cached_tokens=4, completion_tokens=2)
EVENTS = [Started("m", 4), TextDelta("Hé"), TextDelta("!"), Finished("length", USAGE)]


def decode(**fields: Any) -> GenerationCall:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return DIALECT.decode(json.dumps(body).encode())


def chunks(include_usage: bool, events: list[Any] = EVENTS) -> list[Any]:
    encoder = DIALECT.stream_encoder(decode(stream_options={"include_usage": include_usage}))
    raw = b"".join(map(encoder.encode, events)).decode()
    blocks = raw.split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks]
    return [text if text == "[DONE]" else json.loads(text) for text in data]


def test_messages() -> None:
    call = decode(
        messages=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}], "name": "n"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "function": {"name": "f"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ]
    )
    assert call.messages == (
        ChatMessage("system", "d"),
        ChatMessage("user", "a", {"name": "n"}),
        ChatMessage(
            "assistant",
            None,
            {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
        ),
        ChatMessage("tool", "r", {"tool_call_id": "c"}),
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 5),
        ({"max_output_tokens": 4, "max_completion_tokens": 6}, 4),
        ({"max_completion_tokens": 6}, 6),
    ],
)
def test_max_tokens_spellings(fields: dict[str, int], expected: int | None) -> None:
    assert decode(**fields).max_tokens == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ()),
        ({"stop": "a"}, ("a",)),
        ({"stop": ["a", "", "b", "a"]}, ("a", "b")),
        ({"stop": "a", "stop_sequences": ["c"]}, ("a", "c")),
        ({"stop": []}, ()),
    ],
)
def test_stop_strings(fields: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert decode(**fields).stop == expected


def test_other_fields() -> None:
    call = decode(
        model="", stream=True, rep_pen=1.1, chat_template_kwargs={"enable_thinking": False}, n=2
    )
    assert call.num_choices == call.n == 2
    assert call.model is None
    assert call.stream
    assert call.sampling.repetition_penalty == 1.1
    assert call.template_kwargs == {"enable_thinking": False}


def test_tools() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    functions = [
        {"name": "f", "description": "d", "parameters": schema, "strict": True},
        {"name": "g", "parameters": {}},
        {"name": "h", "parameters": None},
    ]
    call = decode(tools=[{"type": "function", "function": function} for function in functions])
    assert call.tools == (ToolSpec("f", "d", schema, True), ToolSpec("g"), ToolSpec("h"))
    assert call.tool_choice == "auto"
    assert call.parallel_tool_calls
    assert not decode(parallel_tool_calls=False).parallel_tool_calls
    assert decode(tools=[], tool_choice="auto").tools == ()
    assert decode(tool_choice="none").tool_choice == "none"


def test_reasoning_is_always_told_apart_and_off_by_default() -> None:
    assert decode().reasoning == ReasoningRequest(enabled=False)
    wished = decode(reasoning_effort="xhigh", thinking={"type": "enabled", "budget_tokens": 7})
    assert wished.reasoning == ReasoningRequest(True, "x-high", "xhigh", True, budget_tokens=7)
    variables = {"enable_thinking": True}
    assert decode(chat_template_kwargs=variables).reasoning == ReasoningRequest(True)


def test_what_an_assistant_turn_may_leave_out() -> None:
    turns = [
        {"role": "assistant", "reasoning": "cut off"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    assert decode(messages=turns).messages == (
        ChatMessage("assistant", None, {"reasoning": "cut off"}),
        ChatMessage("assistant", "no"),
    )
    with pytest.raises(InvalidRequest, match="content is required"):
        decode(messages=[{"role": "user", "reasoning": "x"}])


def test_billing_lines_are_left_out_of_system_turns_only() -> None:
    line = "x-anthropic-billing-header: 1234\n"
    roles = ("system", "developer", "user")
    call = decode(messages=[{"role": role, "content": f"{line}Hello"} for role in roles])
    assert [m.content for m in call.messages] == ["Hello", "Hello", f"{line}Hello"]


def test_no_part_of_a_message_is_lost_in_the_error() -> None:
    with pytest.raises(UnsupportedFeature, match="takes no images") as caught:
        decode(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])
    assert caught.value.param == "messages[0].content[0]"


def test_stream_chunks() -> None:
    got = chunks(include_usage=True)
    assert [c["choices"][0]["delta"] for c in got[:4]] == [
        {"role": "assistant"},
        {"content": "Hé"},
        {"content": "!"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in got[:4]] == [None, None, None, "length"]
    assert got[4]["choices"] == []
    assert got[4]["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert got[5:] == ["[DONE]"]
    assert {c["created"] for c in got[:5]} == {1234}


CALLS = [
    Started("m", 4),
    ReasoningDelta("hm"),
    ToolCallStarted(0, "call_a", "f"),
    ToolCallDelta(0, '{"x":'),
    ToolCallDelta(0, " 1}"),
    ToolCallStarted(1, "call_b", "g"),
    ToolCallDelta(1, "{}"),
    Finished("tool_calls", TokenUsage(7, 4, 9, 2)),
]


def test_stream_of_reasoning_and_calls() -> None:
    got = chunks(True, CALLS)
    assert [c["choices"][0]["delta"] for c in got[:8]] == [
        {"role": "assistant"},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"tool_calls": [_opened(0, "call_a", "f")]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]},
        {"tool_calls": [_opened(1, "call_b", "g")]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert got[7]["choices"][0]["finish_reason"] == "tool_calls"
    assert got[8]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def _opened(index: int, call_id: str, name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": ""}
    return {"index": index, "id": call_id, "type": "function", "function": function}


def test_body_of_reasoning_and_calls() -> None:
    encoder = DIALECT.body_encoder(decode())
    for event in CALLS:
        encoder.add(event)
    message = json.loads(encoder.body())["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning_content"] == message["reasoning"] == "hm"
    assert [(c["id"], c["function"]) for c in message["tool_calls"]] == [
        ("call_a", {"name": "f", "arguments": '{"x": 1}'}),
        ("call_b", {"name": "g", "arguments": "{}"}),
    ]


def test_the_end_comes_behind_the_last_choice() -> None:
    encoder = DIALECT.stream_encoder(decode(n=2, stream_options={"include_usage": True}))
    finished = Finished("stop", USAGE)
    for choice in (0, 1):
        encoder.encode(Started("m", 4), choice)
    assert b"[DONE]" not in encoder.encode(finished, 1)
    *_, usage, done, rest = encoder.encode(finished, 0).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    totals = json.loads(usage.removeprefix(b"data: "))["usage"]
    assert (totals["prompt_tokens"], totals["completion_tokens"]) == (7, 4)


def test_failure_ends_the_stream() -> None:
    got = chunks(False, [*EVENTS[:2], Failed(WorkerLost("gone."))])
    assert got[-2] == {
        "error": {
            "message": "gone.",
            "type": "server_error",
            "param": None,
            "code": "worker_lost",
        }
    }
    assert got[-1] == "[DONE]"


def test_body() -> None:
    encoder = DIALECT.body_encoder(decode())
    for event in EVENTS:
        encoder.add(event)
    body = json.loads(encoder.body())
    assert body["choices"][0]["message"]["content"] == "Hé!"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 9


def test_body_of_a_failure() -> None:
    encoder = DIALECT.body_encoder(decode())
    with pytest.raises(WorkerLost):
        encoder.add(Failed(WorkerLost("gone.")))
    with pytest.raises(InternalError):
        encoder.body()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_call_or_an_invalid_request(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        DIALECT.decode(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(sorted({*ChatRequest.__struct_fields__, "messages"}))


@given(st.dictionaries(FIELDS, JSON, max_size=3))
def test_any_json_in_any_field_is_a_call_or_an_invalid_request(fields: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    try:
        call = DIALECT.decode(json.dumps(body).encode())
    except InvalidRequest:
        return
    assert call.messages


@pytest.mark.parametrize("close_kind", [None, "hard", "natural"])
def test_a_budget_for_reasoning_is_told_of_at_the_end(close_kind: Any) -> None:
    usage = TokenUsage(7, 0, completion_tokens=9, reasoning_tokens=4)
    events = [Started("m", 0), TextDelta("x"), Finished("stop", usage, close_kind=close_kind)]
    *_, last, _done = chunks(include_usage=False, events=events)
    encoder = DIALECT.body_encoder(decode())
    for event in events:
        encoder.add(event)
    (whole,) = json.loads(encoder.body())["choices"]
    expected = {
        "close_kind": close_kind,
        "thinking_tokens": 4,
        "content_tokens": 5,
        "total_tokens": 9,
    }
    for choice in (last["choices"][0], whole):
        assert choice.get("finish_details") == (expected if close_kind else None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": None, "top_logprobs": None}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_log_probabilities_asked_for(fields: dict[str, Any], expected: int | None) -> None:
    assert decode(**fields).sampling.logprobs == expected
