"""Tools in chat completions: offered, called, streamed, refused."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from http_harness import CHAT, Harness, chat_body, events_of, text_of
from scripted_text import tagged_text, writing

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

TEXT = tagged_text()
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


def tool(name: str, parameters: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name, **fields}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ADD, MUL, WRITE = tool("add", NUMBERS), tool("mul", NUMBERS), tool("write", description="Writes.")
ADD_CALL = call("add", '{"a": 1, "b": 2}')
MUL_CALL = call("mul", '{"a": 3, "b": 4}')
TWO_CALLS = f"Both:\n{ADD_CALL}\n{MUL_CALL}"
LONG_CALL = call("write", '{"text": "one two three four five six seven eight nine ten"}')


def serving(answer: str, **fields: Any) -> Harness:
    return Harness(writing(TEXT, answer, **fields), texts=(TEXT,))


def deltas_of(events: list[Any]) -> list[dict[str, Any]]:
    return [event["choices"][0]["delta"] for event in events[:-1]]


def joined_calls(events: list[Any]) -> list[dict[str, Any]]:
    """The calls of a stream; fails where an id or a name comes twice or an index has a gap."""
    calls: list[dict[str, Any]] = []
    for delta in deltas_of(events):
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(calls):
                assert piece["type"] == "function"
                calls.append({"id": piece["id"], "name": piece["function"]["name"], "json": ""})
            else:
                assert piece.keys() == {"index", "function"}
                assert piece["function"].keys() == {"arguments"}
            calls[piece["index"]]["json"] += piece["function"]["arguments"]
    return calls


def whole_calls(body: Any) -> list[dict[str, Any]]:
    found = body["choices"][0]["message"].get("tool_calls", ())
    return [
        {"id": c["id"], "name": c["function"]["name"], "json": c["function"]["arguments"]}
        for c in found
    ]


def without_ids(calls: list[dict[str, Any]]) -> list[Any]:
    return [(c["name"], c["json"]) for c in calls]


async def test_whole_answer_with_one_call_and_no_text() -> None:
    async with serving(ADD_CALL) as server:
        body = (await server.ask("add", tools=[ADD])).json()
    (choice,) = body["choices"]
    (made,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert choice["finish_reason"] == "tool_calls"
    assert made["type"] == "function"
    assert made["id"].startswith("call_")
    assert made["function"]["name"] == "add"
    assert json.loads(made["function"]["arguments"]) == {"a": 1, "b": 2}


@pytest.mark.parametrize("tokens_per_step", [1, 7, 1000])
async def test_b27_parallel_calls_have_an_index_and_an_id_of_their_own(
    tokens_per_step: int,
) -> None:
    async with serving(TWO_CALLS, tokens_per_step=tokens_per_step) as server:
        whole = (await server.ask("both", tools=[ADD, MUL])).json()
        streamed = await server.ask("both", tools=[ADD, MUL], stream=True)
        events = events_of(streamed.text)
        calls = joined_calls(events)
        assert [c["name"] for c in calls] == ["add", "mul"]
        assert [json.loads(c["json"]) for c in calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        assert len({c["id"] for c in calls}) == 2
        assert without_ids(whole_calls(whole)) == without_ids(calls)
        assert text_of(events) == whole["choices"][0]["message"]["content"]
        assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
        await server.idle()


async def test_b27_without_parallel_calls_there_is_one_and_the_worker_is_stopped() -> None:
    almost_all = len(writing(TEXT, TWO_CALLS).reply or []) - 3
    async with serving(TWO_CALLS, hold_after=almost_all) as server:
        for stream in (False, True):
            fields = {"tools": [ADD, MUL], "parallel_tool_calls": False, "stream": stream}
            response = await server.ask("both", **fields)
            if stream:
                calls = joined_calls(events_of(response.text))
            else:
                calls = whole_calls(response.json())
                assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
            assert [c["name"] for c in calls] == ["add"]
        await server.idle()
        assert [c.reason for c in server.models[0].cancels()] == ["stop_string"] * 2


async def test_b29_name_and_id_once_then_fragments_of_the_arguments() -> None:
    async with serving(LONG_CALL) as server:
        events = events_of((await server.ask("x", tools=[WRITE], stream=True)).text)
    pieces = [p for delta in deltas_of(events) for p in delta.get("tool_calls", ())]
    assert [p["function"].get("name") for p in pieces if "name" in p["function"]] == ["write"]
    assert sum("id" in p for p in pieces) == sum("type" in p for p in pieces) == 1
    fragments = [p["function"]["arguments"] for p in pieces]
    assert fragments[0] == ""
    assert len(fragments) > 5
    assert json.loads("".join(fragments)) == {
        "text": "one two three four five six seven eight nine ten"
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_b31_a_call_cut_short_ends_with_length(stream: bool) -> None:
    async with serving(LONG_CALL) as server:
        begun = LONG_CALL.partition(" five")[0]
        num_tokens = len(TEXT.tokenizer.encode_with_specials(begun))
        response = await server.ask("x", tools=[WRITE], max_tokens=num_tokens, stream=stream)
        assert response.status_code == 200
        if stream:
            events = events_of(response.text)
            reason = events[-2]["choices"][0]["finish_reason"]
            calls, text = joined_calls(events), text_of(events)
        else:
            (choice,) = response.json()["choices"]
            reason = choice["finish_reason"]
            calls, text = whole_calls(response.json()), choice["message"]["content"] or ""
        assert reason == "length"
        assert without_ids(calls) == [("write", '{"text": "one two three four')]
        assert text == ""
        await server.idle()


@pytest.mark.parametrize(
    "markup",
    [
        '<tool_call>{"name":"f","arguments":{a:1}</tool_call>',
        call("undeclared", '{"a": 1}'),
        "<tool_call>never a call</tool_call>",
        '<tool_call>{"nam',
    ],
)
async def test_b31_what_is_no_call_is_the_same_text_streamed_and_not(markup: str) -> None:
    async with serving(f"Look: {markup}") as server:
        whole = (await server.ask("x", tools=[ADD])).json()["choices"][0]
        events = events_of((await server.ask("x", tools=[ADD], stream=True)).text)
        assert whole["finish_reason"] == events[-2]["choices"][0]["finish_reason"] == "stop"
        assert "tool_calls" not in whole["message"]
        assert joined_calls(events) == []
        assert text_of(events) == whole["message"]["content"]
        assert whole["message"]["content"].startswith("Look:")
        await server.idle()


@pytest.mark.parametrize("answer", [TWO_CALLS, "Only text."])
async def test_b33_the_finish_reason_agrees_with_the_message(answer: str) -> None:
    async with serving(answer) as server:
        for choice in ("auto", "none"):
            fields = {"tools": [ADD, MUL], "tool_choice": choice}
            whole = (await server.ask("x", **fields)).json()
            events = events_of((await server.ask("x", **fields, stream=True)).text)
            calls = whole_calls(whole)
            assert bool(calls) == (choice == "auto" and answer == TWO_CALLS)
            assert without_ids(calls) == without_ids(joined_calls(events))
            expected = "tool_calls" if calls else "stop"
            assert whole["choices"][0]["finish_reason"] == expected
            assert events[-2]["choices"][0]["finish_reason"] == expected
            assert text_of(events) == (whole["choices"][0]["message"]["content"] or "")


async def test_b25_no_filler_in_chunks_of_plain_text() -> None:
    async with serving("Hello you") as server:
        response = await server.ask("Hi", tools=[tool("f")], tool_choice="none", stream=True)
        events = events_of(response.text)
    first, *others = deltas_of(events)
    assert first == {"role": "assistant"}
    assert all(delta.keys() == {"content"} for delta in others[:-1])
    assert others[-1] == {}
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1] == "[DONE]"
    for key in ("id", "created", "model"):
        assert len({event[key] for event in events[:-1]}) == 1


async def test_b03_an_assistant_turn_with_calls_needs_no_content() -> None:
    made = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":101}'}}
    for content in ({}, {"content": None}, {"content": ""}, {"content": [_part("said")]}):
        messages = [
            {"role": "user", "content": "sqrt 101"},
            {"role": "assistant", "tool_calls": [made], **content},
            {"role": "tool", "tool_call_id": "c1", "content": "10.05"},
        ]
        async with serving("ok") as server:
            response = await server.client.post(CHAT, json={"messages": messages, "tools": [ADD]})
            assert response.status_code == 200, response.text
            (prompt,) = (_prompt_text(s.prompt) for s in server.models[0].submits())
        assert '{"name": "add", "arguments": {"a": 101}}' in prompt
        assert "<tool_response>\n10.05\n</tool_response>" in prompt
        assert ("said" in prompt) == (content == {"content": [_part("said")]})


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _prompt_text(prompt: bytes) -> str:
    ids = memoryview(prompt).cast("i")
    return b"".join(TEXT.tokenizer.token_bytes(token_id) for token_id in ids).decode()


async def test_tools_reach_the_prompt_unless_none_may_be_called() -> None:
    async with serving("ok") as server:
        for fields in (
            {"tools": [WRITE]},
            {"tools": [WRITE], "tool_choice": "none"},
            {"tools": []},
        ):
            assert (await server.ask("x", **fields)).status_code == 200
        prompts = [_prompt_text(submit.prompt) for submit in server.models[0].submits()]
    assert ["Writes." in prompt for prompt in prompts] == [True, False, False]


ALLOWED = "tool_choice.allowed_tools"


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [tool("")]}, "tools[0].function.name", "invalid_request_error"),
    ({"tools": [ADD, ADD]}, "tools[1].function.name", "invalid_request_error"),
    ({"tools": [tool("f", {"type": "array"})]}, "tools[0].function.parameters.type", ""),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", ""),
    ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "unsupported_feature"),
    ({"tools": [ADD], "tool_choice": {"type": "custom"}}, "tool_choice.type", ""),
    (
        {"tools": [ADD], "tool_choice": {"type": "allowed_tools"}},
        "tool_choice.allowed_tools",
        "invalid_request_error",
    ),
    ({"tools": [ADD], "tool_choice": allowed("maybe", "add")}, f"{ALLOWED}.mode", ""),
    ({"tools": [ADD], "tool_choice": allowed("auto", "add", "x")}, f"{ALLOWED}.tools", ""),
    ({"tools": [ADD], "tool_choice": allowed("required")}, f"{ALLOWED}.tools", ""),
    ({"tools": [ADD], "tool_choice": tool("other")}, "tool_choice", "invalid_request_error"),
    ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice.function", ""),
    ({"tool_choice": "required"}, "tool_choice", "invalid_request_error"),
    ({"tools": [ADD], "parallel_tool_calls": "no"}, "parallel_tool_calls", ""),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_done_is_refused_by_name(stream: bool) -> None:
    async with serving("ok") as server:
        for fields, param, code in REFUSED:
            response = await server.ask("x", **fields, stream=stream)
            assert response.status_code == 400, fields
            error = response.json()["error"]
            assert error["param"] == param, fields
            assert not code or error["code"] == code
        assert server.models[0].submits() == []


async def test_the_official_clients_stream_helper_collects_the_unstreamed_reply() -> None:
    strict = {"strict": True}
    tools: Any = [tool("add", NUMBERS, **strict), tool("mul", NUMBERS, **strict)]
    messages: Any = [{"role": "user", "content": "both"}]
    for answer in (TWO_CALLS, ADD_CALL, "Only text.", ""):
        async with serving(answer) as server:
            sdk = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
            async with sdk:
                asked = {"model": "m", "messages": messages, "tools": tools}
                whole = await sdk.chat.completions.create(**asked)
                asked["stream_options"] = {"include_usage": True}
                async with sdk.chat.completions.stream(**asked) as stream:
                    final = await stream.get_final_completion()
        ours, theirs = final.choices[0], whole.choices[0]
        assert ours.finish_reason == theirs.finish_reason
        assert ours.message.content == theirs.message.content
        assert _functions(ours.message) == _functions(theirs.message)
        assert final.usage == whole.usage


def _functions(message: Any) -> list[tuple[str, str]]:
    return [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]


async def test_a_failure_between_calls_ends_the_stream_with_an_error() -> None:
    script = writing(TEXT, TWO_CALLS, fail_error="InternalError")
    async with Harness(script, FakeScript(), texts=(TEXT,)) as server:
        body = chat_body("x", tools=[ADD, MUL], stream=True)
        events = events_of((await server.client.post(CHAT, json=body)).text)
        assert events[-2]["error"]["type"] == "server_error"
        assert events[-1] == "[DONE]"
        await server.idle()
