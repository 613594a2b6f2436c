"""Bug log, area api: B01 to B13."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from case_client import (
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    ROUTES,
    TEXT,
    anthropic_error_of,
    call,
    collect,
    error_of,
    minimal,
    serving,
)
from http_harness import CHAT, Harness, events_of
from messages_client import named_events
from scripted_text import writing
from server_process import ServerProcess

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

NULLS = {
    CHAT: ("temperature", "top_p", "max_tokens", "stop", "seed", "tools", "stream", "logprobs"),
    COMPLETIONS: ("temperature", "top_p", "stop", "seed", "stream", "logprobs", "suffix", "n"),
    MESSAGES: ("temperature", "top_p", "top_k", "stop_sequences", "tools", "stream", "thinking"),
    RESPONSES: ("temperature", "top_p", "tools", "stream", "store", "previous_response_id"),
}


@pytest.mark.parametrize("path", ROUTES)
async def test_case_b01_null_is_absent(path: str) -> None:
    async with serving("Hello.") as server:
        nulls: dict[str, Any] = dict.fromkeys(NULLS[path])
        if path == CHAT:
            nulls["max_completion_tokens"] = 4
        answer = await server.client.post(path, json=minimal(path, **nulls))
        assert answer.status_code == 200, answer.text
        asked = server.models[0].submits()[0].sampling
        await server.client.post(path, json=minimal(path))
        assert server.models[0].submits()[1].sampling == asked


@pytest.mark.parametrize("path", ROUTES)
async def test_case_b01_a_wrong_type_is_named(path: str) -> None:
    async with serving("Hello.") as server:
        answer = await server.client.post(path, json=minimal(path, temperature="hot"))
        assert answer.status_code == 400
        assert "temperature" in answer.json()["error"]["message"]
        if path != MESSAGES:
            assert error_of(answer)[2] == "temperature"


CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "sqrt 101"},
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "sqrt", "arguments": '{"x":101}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "10.05"},
]


async def test_case_b03_an_assistant_turn_with_calls_and_no_content() -> None:
    async with serving("Ten.") as server:
        body = {"model": "m", "max_tokens": 8, "messages": CALLED}
        assert collect(await server.client.post(CHAT, json=body)).text == "Ten."
        nulled = [dict(message) for message in CALLED]
        nulled[1]["content"] = None
        await server.client.post(CHAT, json={**body, "messages": nulled})
        first, second = (submit.prompt for submit in server.models[0].submits())
        assert first == second
        for content in ({}, {"content": None}):
            messages = [*CALLED, {"role": "user", **content}]
            answer = await server.client.post(CHAT, json={**body, "messages": messages})
            status, _, param = error_of(answer)
            assert (status, param) == (400, "messages[3].content")


@pytest.mark.parametrize("model", ["no-such-model", "small", "auto", "", None])
@pytest.mark.parametrize("stream", [False, True])
async def test_case_b05_balancing_names_the_model_that_answered(
    model: str | None, stream: bool
) -> None:
    scripts = [writing(TEXT, "ok"), writing(TEXT, "ok")]
    async with Harness(*scripts, texts=(TEXT, TEXT)) as server:
        for path in ROUTES:
            answer = await server.client.post(path, json=minimal(path, model=model, stream=stream))
            assert answer.status_code == 200, answer.text
            assert named_models(path, answer, stream) == {"big"}
        assert server.models[1].submits() == []


def named_models(path: str, answer: Any, stream: bool) -> set[str]:
    """Every `model` in an answer."""
    if not stream:
        return {answer.json()["model"]}
    if path in (CHAT, COMPLETIONS):
        return {event["model"] for event in events_of(answer.text)[:-1]}
    events = named_events(answer.text)
    inner = [event.get("message") or event.get("response") or {} for event in events]
    return {found["model"] for found in inner if "model" in found}


async def test_case_b05_a_name_that_must_select_is_404() -> None:
    """Counting tokens selects by name also while generations do not."""
    async with Harness(FakeScript(), FakeScript()) as server:
        answer = await server.client.post(
            "/tokenize", json={"model": "no-such-model", "content": "x"}
        )
        status, message, param = error_of(answer)
        assert (status, param) == (404, "model")
        assert "big, small" in message
        body = minimal(MESSAGES, model="no-such-model")
        counted = await server.client.post(f"{MESSAGES}/count_tokens", json=body)
        assert counted.status_code == 404


async def test_case_b05_by_name_an_unknown_model_is_404(tiny_path: Path) -> None:
    words = f"""-m luce serve --model-routing name
        --model {tiny_path} --model-name m --target-device cpu:0 --port 0
        --model {tiny_path} --model-name m2 --target-device cpu:1"""
    async with ServerProcess([sys.executable, *words.split()]) as server:
        answer = await server.client.post(CHAT, json=minimal(CHAT, model="no-such-model"))
        assert error_of(answer)[0] == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert "m, m2" in answer.json()["error"]["message"]


async def test_case_b07_legacy_logprobs_are_four_arrays_also_streamed() -> None:
    body = minimal(COMPLETIONS, prompt="The sky is", max_tokens=3, logprobs=2, temperature=0)
    async with serving("a wörld") as server:
        whole = (await server.client.post(COMPLETIONS, json=body)).json()["choices"][0]
        streamed = await server.client.post(COMPLETIONS, json={**body, "stream": True})
        assert "content" not in whole["logprobs"]
        *events, done = events_of(streamed.text)
        assert done == "[DONE]"
    joined: dict[str, list[Any]] = {name: [] for name in LEGACY_ARRAYS}
    for (choice,) in (event["choices"] for event in events if event["choices"]):
        assert choice["logprobs"] or not choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            joined[name] += values
    assert joined == whole["logprobs"]
    assert {len(joined[name]) for name in LEGACY_ARRAYS} == {3}
    assert all(len(top) >= 2 for top in joined["top_logprobs"])
    assert joined["text_offset"] == sorted(joined["text_offset"])


LEGACY_ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.mark.parametrize("path", ROUTES)
async def test_case_b09_a_large_cap_is_lowered_and_a_small_one_refused(path: str) -> None:
    cap = "max_output_tokens" if path == RESPONSES else "max_tokens"
    async with serving("x" * 400, max_ctx=256) as server:
        answer = await server.client.post(path, json=minimal(path, **{cap: 65536}))
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        inputs = usage.get("prompt_tokens", usage.get("input_tokens"))
        outputs = usage.get("completion_tokens", usage.get("output_tokens"))
        assert inputs + outputs <= 256
        assert server.models[0].submits()[0].sampling.max_tokens <= 256 - inputs
        for bad in (0, -1):
            refused = await server.client.post(path, json=minimal(path, **{cap: bad}))
            assert refused.status_code == 400
            assert cap in refused.json()["error"]["message"]


PNG = "iVBORw0KGgo="
IMAGE_URL = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
REMOTE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/never.png"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}
UNKNOWN = {"type": "hologram", "hologram": 1}
SOURCE = {"type": "base64", "media_type": "image/png", "data": PNG}


@pytest.mark.parametrize("part", [IMAGE_URL, REMOTE, AUDIO, UNKNOWN])
@pytest.mark.parametrize("stream", [False, True])
async def test_case_b11_what_a_text_model_cannot_take_is_refused(part: Any, stream: bool) -> None:
    content = [{"type": "text", "text": "What is it?"}, part]
    messages = [{"role": "user", "content": content}]
    async with serving("Hello.") as server:
        body = minimal(CHAT, messages=messages, stream=stream)
        status, message, param = error_of(await server.client.post(CHAT, json=body))
        assert status == 400
        assert param is not None
        assert param.startswith("messages[0].content")
        assert part["type"].split("_")[0].replace("input", "audio") in message
        assert collect(await server.ask()).text == "Hello."
        assert len(server.models[0].submits()) == 1


async def test_case_b11_in_the_shapes_of_the_other_apis() -> None:
    async with serving("Hello.") as server:
        content = [{"type": "image", "source": SOURCE}]
        body = minimal(MESSAGES, messages=[{"role": "user", "content": content}])
        status, kind, message = anthropic_error_of(await server.client.post(MESSAGES, json=body))
        assert (status, kind) == (400, "invalid_request_error")
        assert "image" in message
        part = {"type": "input_image", "image_url": IMAGE_URL["image_url"]["url"]}  # type: ignore[index]
        item = {"type": "message", "role": "user", "content": [part]}
        status, message, _ = error_of(
            await server.client.post(RESPONSES, json=minimal(RESPONSES, input=[item]))
        )
        assert status == 400
        assert "image" in message


CODEX_TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "shell",
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
        "strict": False,
    },
    {"type": "web_search"},
    {
        "type": "custom",
        "name": "apply_patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"},
    },
    {"type": "namespace", "name": "mcp", "tools": []},
]
CODEX_INPUT: list[Any] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
]


async def test_case_b13_tools_that_cannot_run_are_dropped_with_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = call("shell", '{"cmd": "ls"}')
    body = minimal(RESPONSES, input=CODEX_INPUT, tools=CODEX_TOOLS, store=False)
    body["max_output_tokens"] = 200
    async with serving(answer) as server:
        with caplog.at_level(logging.DEBUG, logger="luce"):
            streamed = await server.client.post(RESPONSES, json={**body, "stream": True})
        assert streamed.status_code == 200, streamed.text
        last = named_events(streamed.text)[-1]
        assert last["type"] == "response.completed"
        (item,) = (i for i in last["response"]["output"] if i["type"] == "function_call")
        assert (item["name"], item["arguments"]) == ("shell", '{"cmd": "ls"}')
        nameless = [{**CODEX_TOOLS[0]}]
        del nameless[0]["name"]
        refused = await server.client.post(RESPONSES, json={**body, "tools": nameless})
        status, message, _ = error_of(refused)
        assert status == 400
        assert "name" in message
    dropped = [record for record in caplog.records if "tool" in record.getMessage()]
    assert any("web_search" in str(vars(record)) for record in dropped)


async def test_case_b13_the_official_client_streams_it() -> None:
    async with (
        serving("Hello.") as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.responses.create(
            model="m", input=CODEX_INPUT, tools=CODEX_TOOLS, stream=True, store=False
        )
        kinds = [event.type async for event in stream]
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
