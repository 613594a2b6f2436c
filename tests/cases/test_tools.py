"""Bug log, area tools: B27 to B37. The script writes what a grammar would force, or worse."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest
from case_client import (
    SCHEMA_AB,
    TEXT,
    USER,
    both,
    call,
    collect,
    minimal,
    parsed,
    serving,
    tool,
)
from http_harness import CHAT, Harness, Rules
from messages_client import F
from messages_client import both as both_messages
from responses_client import both as both_responses
from scripted_text import writing

pytestmark = pytest.mark.anyio

ADD, MUL, WRITE = tool("add", SCHEMA_AB), tool("mul", SCHEMA_AB), tool("write")
ADD_CALL, MUL_CALL = call("add", '{"a": 1, "b": 2}'), call("mul", '{"a": 3, "b": 4}')
TEN = "one two three four five six seven eight nine ten"
WRITE_CALL = call("write", json.dumps({"text": TEN}))


async def with_openai(server: Harness, **fields: Any) -> Any:
    """What the official client's stream helper collects."""
    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(model="m", messages=USER, **fields) as stream,
    ):
        return (await stream.get_final_completion()).choices[0]


@pytest.mark.parametrize("choice", ["required", "auto"])
async def test_case_b27_parallel_calls_have_their_own_index_and_id(choice: str) -> None:
    fields: dict[str, Any] = {"tools": [ADD, MUL], "tool_choice": choice}
    async with serving(f"{ADD_CALL}\n{MUL_CALL}") as server:
        body = minimal(CHAT, max_tokens=200, parallel_tool_calls=True, **fields)
        found = await both(server.client, body)
        assert [c["name"] for c in found.calls] == ["add", "mul"]
        assert [parsed(c["arguments"]) for c in found.calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        assert len({c["id"] for c in found.calls}) == 2
        assert found.finish == ["tool_calls"]
        one = await both(server.client, {**body, "parallel_tool_calls": False})
        assert [c["name"] for c in one.calls] == ["add"]
        helped = await with_openai(server, max_tokens=200, parallel_tool_calls=True, **fields)
        names = [c.function.name for c in helped.message.tool_calls]
        assert names == ["add", "mul"]


async def test_case_b29_name_and_id_come_once() -> None:
    fields: dict[str, Any] = {"tools": [WRITE], "tool_choice": "required", "max_tokens": 120}
    async with serving(WRITE_CALL) as server:
        found = await both(server.client, minimal(CHAT, **fields))
        (called,) = found.calls
        assert (called["name"], parsed(called["arguments"])) == ("write", {"text": TEN})
        assert json.dumps(found.chunks).count(called["id"]) == 1
        assert json.dumps(found.chunks).count('"name"') == 1
        helped = await with_openai(server, **fields)
        assert helped.message.tool_calls[0].function.name == "write"


async def test_case_b31_a_call_that_is_cut_short() -> None:
    body = minimal(CHAT, tools=[WRITE], tool_choice="required")
    async with serving(WRITE_CALL) as server:
        for max_tokens in (1, 6, 20, 40):
            found = await both(server.client, {**body, "max_tokens": max_tokens})
            assert found.finish == ["length"]
            assert all(c["name"] == "write" for c in found.calls)
        assert found.calls or found.text
        message = await both_messages(
            server, max_tokens=40, tools=[{"name": "write", "input_schema": {"type": "object"}}]
        )
        assert message["stop_reason"] == "max_tokens"
        await server.idle()


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>{"name":"nobody","arguments":{"a":1}}</tool_call>',
        '<tool_call>{"name":"f","arguments":nothing of the kind</tool_call>',
        "<tool_call>f with its arguments</tool_call>",
        '<tool_call>{"arguments":{"a":1}',
    ],
)
async def test_case_b31_what_is_no_call_is_content(answer: str) -> None:
    async with serving(answer) as server:
        found = await both(server.client, minimal(CHAT, max_tokens=200, tools=[tool("f")]))
        assert "arguments" in found.text
        assert (found.calls, found.finish) == ([], ["stop"])
        await server.idle()


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>{"name":"f","arguments":{a:1}</tool_call>',
        '<tool_call>{"name":"f","arguments":{"a":1}',
    ],
)
async def test_case_b31_what_is_nearly_a_call_is_mended(answer: str) -> None:
    """A key without quotes, a brace or an end tag that is missing: the meaning is plain."""
    async with serving(answer) as server:
        found = await both(server.client, minimal(CHAT, max_tokens=200, tools=[tool("f")]))
        assert [(c["name"], parsed(c["arguments"])) for c in found.calls] == [("f", {"a": 1})]
        assert (found.text, found.finish) == ("", ["tool_calls"])


NO_CALL = "Just text."


@pytest.mark.parametrize(
    "choice", ["required", "auto", {"type": "function", "function": {"name": "f"}}]
)
async def test_case_b33_calls_and_their_finish_reason(choice: Any) -> None:
    async with serving(call("f", '{"a": 1}')) as server:
        body = minimal(CHAT, max_tokens=60, tools=[tool("f", F["input_schema"])])  # type: ignore[arg-type]
        found = await both(server.client, {**body, "tool_choice": choice})
        assert [c["name"] for c in found.calls] == ["f"]
        assert found.finish == ["tool_calls"]


async def test_case_b33_no_calls_and_their_finish_reason() -> None:
    async with serving(f"{NO_CALL}{call('f', '{}')}") as server:
        body = minimal(CHAT, max_tokens=200, tools=[tool("f")], tool_choice="none")
        found = await both(server.client, body)
        assert found.calls == []
        assert found.finish == ["stop"]
        assert found.text.startswith(NO_CALL)
        message = await both_messages(server, tools=[F], tool_choice={"type": "none"})
        assert message["stop_reason"] == "end_turn"
        assert all(block["type"] == "text" for block in message["content"])


async def test_case_b33_in_the_other_apis() -> None:
    async with serving(call("f", '{"a": 1}')) as server:
        message = await both_messages(server, tools=[F], tool_choice={"type": "any"})
        assert message["stop_reason"] == "tool_use"
        assert message["content"][-1]["input"] == {"a": 1}
        function = {"type": "function", "name": "f", "parameters": F["input_schema"]}
        response = await both_responses(server, tools=[function], tool_choice="required")
        assert response["status"] == "completed"
        assert [item["type"] for item in response["output"]] == ["function_call"]


UNUSUAL_SCHEMAS: list[dict[str, Any]] = [
    {"type": "string", "pattern": "^hello\\!$"},
    {"type": "string", "pattern": "\\S"},
    {"type": "string", "pattern": "^(?!x)[^\\p{Cc}]{1,200}$"},
    {"type": "string", "maxLength": 65536},
    {"$ref": "#/$defs/missing"},
    {"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
    {"type": "nonsense"},
]


@pytest.mark.parametrize("schema", UNUSUAL_SCHEMAS)
async def test_case_b35_tools_with_unusual_schemas_go_on(schema: dict[str, Any]) -> None:
    """The model may call: what a constraint cannot say is no reason to refuse the request."""
    parameters = {"type": "object", "properties": {"x": schema}}
    tools = [tool("f", parameters)]
    async with serving("Fine.") as server:
        found = await both(server.client, minimal(CHAT, max_tokens=16, tools=tools))
        assert found.text == "Fine."


COMPILE_LIMIT_S = 60
"""Generous: tests share two cores with others."""


async def test_case_b35_sixty_large_tools_are_quick_and_stall_nobody() -> None:
    properties = {f"field_{i}": {"type": "string", "description": "d" * 40} for i in range(20)}
    schema = {"type": "object", "properties": properties}
    tools = [tool(f"tool_{i}", schema) for i in range(60)]
    assert 1_500 < len(json.dumps(tools[0])) < 2_500
    script = writing(TEXT, call("tool_7", "{}"), max_ctx=400_000, kv_pool_tokens=10**6)
    async with Harness(script, texts=(TEXT,), rules=Rules(max_body_bytes=10**6)) as server:
        body = minimal(CHAT, max_tokens=60, tools=tools, tool_choice="required")
        clock_s = asyncio.get_running_loop().time
        started_s = clock_s()
        large = asyncio.create_task(server.client.post(CHAT, json=body))
        waits_s = []
        while not large.done():
            asked_s = clock_s()
            assert (await server.client.get("/health")).status_code == 200
            waits_s.append(clock_s() - asked_s)
            await asyncio.sleep(0.02)
        took_s = clock_s() - started_s
        assert took_s < COMPILE_LIMIT_S
        assert max(waits_s) < max(2.0, took_s / 2)
        assert [c["name"] for c in collect(await large).calls] == ["tool_7"]


@pytest.mark.parametrize("tokens_per_step", [1, 5, 1000])
async def test_case_b37_blocks_of_a_message_are_never_mixed(tokens_per_step: int) -> None:
    first, second = (call("f", json.dumps({"a": number})) for number in (1, 2))
    answer = f"ok{first}\n{second}"
    async with serving(answer, tokens_per_step=tokens_per_step) as server:
        message = await both_messages(server, tools=[F], max_tokens=200)
        kinds = [block["type"] for block in message["content"]]
        assert kinds == ["text", "tool_use", "tool_use"]
        assert [block.get("input") for block in message["content"][1:]] == [{"a": 1}, {"a": 2}]
        assert message["stop_reason"] == "tool_use"
        assert message["usage"]["output_tokens"] > 0
        tool_f: Any = F
        async with (
            anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client,
            client.messages.stream(
                model="m",
                max_tokens=200,
                messages=USER,
                tools=[tool_f],
            ) as stream,
        ):
            final = await stream.get_final_message()
        assert [block.type for block in final.content] == kinds
