"""What is wrong with Messages requests, told in Anthropic's shape; never a 500."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from http_harness import ByteText, Harness, Rules
from messages_client import BOTH, MESSAGES, F, ask, named_events, serving

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

SCHEMA_FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": "x"}]}]},
        "messages[0].content[0].input",
    ),
    ({"model": 42}, "model"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "text"}]}, "system[0].text"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"stream": "yes"}, "stream"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"n": 2}, "n"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [1]}, "stop_sequences[0]"),
    ({"stop_sequences": [str(i) for i in range(17)]}, "stop_sequences"),
    ({"tools": {}}, "tools"),
    ({"tools": [{}]}, "tools[0].name"),
    ({"tools": [{"name": "f", "input_schema": "x"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools[0].input_schema"),
    ({"tools": [F, F]}, "tools[1].name"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
    ({"tools": [{**F, "strict": "yes"}]}, "tools[0].strict"),
    ({"tools": [{**F, "type": 5}]}, "tools[0].type"),
    ({"thinking": "on"}, "thinking"),
    ({"thinking": {}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
    ({"output_config": "high"}, "output_config"),
    ({"output_config": {"effort": 5}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ({"output_config": {"format": "json"}}, "output_config.format"),
    ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
    (
        {"output_config": {"format": SCHEMA_FORMAT}, "output_format": SCHEMA_FORMAT},
        "output_format.schema",
    ),
    ({"output_format": SCHEMA_FORMAT, "grammar": "start: /a/"}, "grammar"),
    ({"regex": 5}, "regex"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"min_tokens": 600}, "min_tokens"),
    ({"betas": "x"}, "betas"),
    ({"billing_policy": "x"}, "billing_policy"),
    ({"cache_control": "x"}, "cache_control"),
    ({"context_management": []}, "context_management"),
    ({"diagnostics": 5}, "diagnostics"),
    ({"inference_geo": 5}, "inference_geo"),
    ({"speed": 5}, "speed"),
    ({"user_profile_id": 5}, "user_profile_id"),
    ({"workspace_id": 5}, "workspace_id"),
    ({"metadata": "u"}, "metadata"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ({"service_tier": 5}, "service_tier"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"reasoning_effort": 5}, "reasoning_effort"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_wrong_fields_are_named(stream: bool) -> None:
    async with Harness() as server:
        for fields, param in WRONG_FIELDS:
            response = await ask(server, **{"stream": stream, **fields})
            assert response.status_code == 400, (fields, response.text)
            answer = response.json()
            assert answer["type"] == "error"
            assert answer["request_id"] == response.headers["x-request-id"]
            error = answer["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", param), fields
            assert param.split(".")[-1].split("[")[0] in error["message"]
        assert server.models[0].submits() == []
        await server.idle()


@pytest.mark.parametrize("path", BOTH)
async def test_errors_of_all_kinds_have_anthropics_shape(path: str) -> None:
    async with Harness(FakeScript(), FakeScript()) as server:
        answers = [
            (await server.client.get(path), 405, "invalid_request_error"),
            (await server.client.post(f"{path}/x", json={}), 404, "not_found_error"),
            (await server.client.post(path, content=b"{"), 400, "invalid_request_error"),
            (await server.client.post(path, content=b"\xff"), 400, "invalid_request_error"),
            (await server.client.post(path, content=b"x" * 200_000), 413, "request_too_large"),
            (
                await server.client.post(path, content=b"{}", headers={"content-type": "a/b"}),
                415,
                "invalid_request_error",
            ),
        ]
    for response, status, kind in answers:
        assert response.status_code == status
        body = response.json()
        assert (body["type"], body["error"]["type"]) == ("error", kind)
        assert body["request_id"] == response.headers["x-request-id"]


async def test_a_full_queue_is_overloaded() -> None:
    held = FakeScript(hold_after=0, max_concurrency=1)
    async with Harness(held, rules=Rules(queue_limit=0)) as server:
        asking = asyncio.create_task(ask(server))
        await server.running(1)
        response = await ask(server, stream=True)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"]["type"] == "overloaded_error"
        server.models[0].worker.release()
        assert (await asking).status_code == 200


async def test_a_failure_in_mid_stream_is_an_event() -> None:
    script = FakeScript(reply=[97, 98], fail_error="WorkerLost")
    async with Harness(script) as server:
        events = named_events((await ask(server, stream=True)).text)
        assert [event["type"] for event in events[-2:]] == ["content_block_delta", "error"]
        assert events[-1]["error"]["type"] == "overloaded_error"
        assert events[-1]["request_id"]
        whole = await ask(server)
        assert (whole.status_code, whole.json()["type"]) == (503, "error")


async def test_a_bug_of_ours_is_told_in_anthropics_shape() -> None:
    class Broken(ByteText):
        def prepare(self, call: object, limit: int | None = None) -> Any:
            raise ZeroDivisionError

    async with Harness(texts=(Broken(),)) as server:
        response = await ask(server)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "api_error"


async def test_deep_nesting_and_odd_numbers() -> None:
    deep = '{"type":"object","properties":' * 3000 + "{}" + "}" * 3000
    tool = f'[{{"name":"f","input_schema":{deep}}}]'
    bodies = [
        f'{{"max_tokens":5,"messages":[{{"role":"user","content":"x"}}],"tools":{tool}}}',
        '{"max_tokens":1e999,"messages":[]}',
        '{"max_tokens":NaN,"messages":[]}',
        '{"max_tokens":5,"messages":[{"role":"user","content":"\\ud800"}]}',
        json.dumps({"max_tokens": 10**40, "messages": [], "temperature": 10**400}),
    ]
    async with serving("x") as server:
        for body in bodies:
            response = await server.client.post(MESSAGES, content=body.encode())
            assert response.status_code == 400, (body[:80], response.text)
            assert response.json()["type"] == "error"
