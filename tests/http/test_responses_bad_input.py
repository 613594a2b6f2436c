"""What is wrong with Responses requests: 400 with the field, never a 500; and failures."""

from __future__ import annotations

from typing import Any

import pytest
from http_harness import Harness
from messages_client import named_events
from responses_client import PATCH, RESPONSES, F, ask, serving

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"input": [USER, {"type": kind, **fields}]}


def part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": kind, **fields}]}]}


ALLOWED = {
    "type": "allowed_tools",
    "mode": "required",
    "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
}
PART = "input[0].content[0]"
WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [{"type": "reasoning"}]}, "input"),
    ({"input": [{"type": "web_search_call"}]}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "nobody", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    (part("input_text"), f"{PART}.text"),
    (part("input_text", text=5), f"{PART}.text"),
    (part("smell", text="x"), f"{PART}.type"),
    (part("input_image", image_url="http://127.0.0.1:9/x"), f"{PART}.type"),
    (part("input_file", file_id="x"), f"{PART}.type"),
    (item("item_reference", id="x"), "input[1].type"),
    (item("smell"), "input[1].type"),
    (item("function_call", name="f", arguments="{}"), "input[1].call_id"),
    (item("function_call", call_id="c", arguments="{}"), "input[1].name"),
    (item("function_call", call_id="c", name="f"), "input[1].arguments"),
    (item("function_call", call_id=5), "input[1].call_id"),
    (item("function_call_output", call_id="c"), "input[1].output"),
    (item("function_call_output", call_id="c", output=5), "input[1].output"),
    (
        item("function_call_output", call_id="c", output=[{"type": "input_image"}]),
        "input[1].output[0].type",
    ),
    (item("custom_tool_call", call_id="c", name="f"), "input[1].input"),
    (item("custom_tool_call_output", output="x"), "input[1].call_id"),
    (item("reasoning", summary="x"), "input[1].summary"),
    (item("reasoning", encrypted_content=5), "input[1].encrypted_content"),
    ({"model": 42}, "model"),
    ({"instructions": 5}, "instructions"),
    ({"stream": "yes"}, "stream"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "x"}, "max_output_tokens"),
    ({"n": 2}, "n"),
    ({"tools": {}}, "tools"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "custom"}]}, "tools[0].name"),
    ({"tools": [{**F, "name": 5}]}, "tools[0].name"),
    ({"tools": [{**F, "parameters": "x"}]}, "tools[0].parameters"),
    ({"tools": [{**F, "parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
    ({"tools": [F, F]}, "tools[1].name"),
    ({"tools": [{"type": "custom", "name": "p", "format": "x"}]}, "tools[0].format"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
    ({"tool_choice": {"type": "function"}, "tools": [F]}, "tool_choice.name"),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [F]}, "tool_choice.name"),
    ({"tool_choice": {"type": "web_search"}, "tools": [F]}, "tool_choice.type"),
    ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.mode"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "maybe"}}, "tool_choice.mode"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}, "tools": [F]}, "tool_choice.tools"),
    ({"tool_choice": ALLOWED, "tools": [PATCH]}, "tool_choice.tools"),
    ({"parallel_tool_calls": "x"}, "parallel_tool_calls"),
    ({"reasoning": "high"}, "reasoning"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"),
    ({"reasoning": {"summary": 5}}, "reasoning.summary"),
    ({"text": "x"}, "text"),
    ({"text": {"verbosity": 5}}, "text.verbosity"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": 5}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "strict": 5}}}, "text.format.strict"),
    ({"text": {"format": {}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex"),
    ({"grammar": 5}, "grammar"),
    ({"guided_regex": "a"}, "guided_regex"),
    ({"include": "x"}, "include"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"top_logprobs": True}, "top_logprobs"),
    ({"top_logprobs": "x"}, "top_logprobs"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 6, "max_output_tokens": 5}, "min_tokens"),
    ({"tools": [{**F, "strict": 5}]}, "tools[0].strict"),
    ({"store": "x"}, "store"),
    ({"metadata": "x"}, "metadata"),
    ({"metadata": {"b": "x", "a": 5}}, "metadata.a"),
    ({"user": 5}, "user"),
    ({"prompt_cache_key": 5}, "prompt_cache_key"),
    ({"service_tier": 5}, "service_tier"),
    ({"truncation": "x"}, "truncation"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "x"}}, "prompt"),
    ({"reasoning_effort": 5}, "reasoning_effort"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_wrong_fields_are_named(stream: bool) -> None:
    async with Harness() as server:
        for fields, param in WRONG_FIELDS:
            response = await ask(server, **{"stream": stream, **fields})
            assert response.status_code == 400, (fields, response.text)
            assert response.headers["content-type"] == "application/json"
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["type"], error["param"]) == ("invalid_request_error", param), fields
            assert param.split(".")[-1].split("[")[0] in error["message"]
        assert server.models[0].submits() == []
        await server.idle()


async def test_what_changes_nothing_is_accepted() -> None:
    fields = {
        "background": False,
        "include": ["web_search_call.action.sources"],
        "max_tool_calls": 3,
        "moderation": None,
        "prompt_cache_retention": "24h",
        "safety_identifier": "x",
        "service_tier": "auto",
        "stream_options": {"include_obfuscation": False},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "top_logprobs": 0,
        "truncation": "auto",
        "unheard_of": {"x": 1},
    }
    async with Harness() as server:
        assert (await ask(server, **fields)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_b23_a_prompt_that_is_too_long_is_a_real_status(stream: bool) -> None:
    async with Harness(FakeScript(max_ctx=64)) as server:
        response = await ask(server, input="x" * 2000, stream=stream)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")


async def test_a_failure_in_mid_stream_is_the_last_event() -> None:
    async with Harness(FakeScript(reply=[97, 98], fail_error="WorkerLost")) as server:
        events = named_events((await ask(server, stream=True)).text)
        whole = await ask(server)
    last = events[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert last["response"]["id"] == events[0]["response"]["id"]
    # What was not finished never was.
    assert last["response"]["output"] == []
    assert "response.output_item.done" not in [event["type"] for event in events]
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "worker_lost")


async def test_bad_bodies() -> None:
    deep = '{"type":"object","properties":' * 3000 + "{}" + "}" * 3000
    tools = f'[{{"type":"function","name":"f","parameters":{deep}}}]'
    bodies = ["{", "[]", "null", f'{{"input":"x","tools":{tools}}}', '{"input":"\\ud800"}']
    async with serving("x") as server:
        for body in bodies:
            response = await server.client.post(RESPONSES, content=body.encode())
            assert response.status_code == 400, body[:80]
            assert response.json()["error"]["message"]
        assert (await server.client.get(RESPONSES)).status_code == 405
        assert (await server.client.post(f"{RESPONSES}/x/y", json={})).status_code == 404
