"""Everything a client can get wrong: a clear 4xx, and no cost to anybody else."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from http_harness import CHAT, ByteText, Harness, Rules, chat_body

from luce.listener import respond
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}

WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [USER, {"role": "user", "content": None}]}, "messages[1].content"),
    ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "smell", "text": "x"}]}]},
        "messages[0].content[0].type",
    ),
    ({"model": 42}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"tools": {}}, "tools"),
    ({"tools": [{}]}, "tools[0].function"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"reasoning": "high"}, "reasoning"),
    ({"reasoning_effort": 3}, "reasoning_effort"),
    ({"thinking": {"type": 1}}, "thinking.type"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": [str(i) for i in range(17)]}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x"),
    ({"logit_bias": {"5": 1, "6": "a"}}, "logit_bias.6"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"logit_bias": {"256": 1}}, "logit_bias.256"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"stop": "x" * 4097}, "stop"),
    ({"stop_sequences": ["x", "y" * 4097]}, "stop_sequences[1]"),
    ({"temperature": 100.5}, "temperature"),
    ({"logprobs": 1}, "logprobs"),
    ({"logprobs": "yes"}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": True, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": 2.5, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": "2", "logprobs": True}, "top_logprobs"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 1.5}, "min_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
    ({"grammar": "start: /a/", "regex": "a"}, "regex"),
    ({"grammar": {}}, "grammar"),
]

UNSERVED: list[dict[str, Any]] = [
    {"functions": [{"name": "f"}]},
    {"guided_json": {"type": "object"}},
    {"guided_regex": "a"},
    {"guided_choice": ["a"]},
    {"guided_grammar": "root ::= a"},
    {"structured_outputs": {"regex": "a"}},
    {"ebnf": "root ::= a"},
    {"modalities": ["text", "audio"]},
    {"audio": {"voice": "x"}},
    {"prediction": {"type": "content", "content": "x"}},
    {"web_search_options": {}},
]


@pytest.mark.parametrize("stream", [False, True])
async def test_wrong_fields_are_named(stream: bool) -> None:
    async with Harness() as server:
        for fields, param in WRONG_FIELDS:
            body = {"messages": [USER], "stream": stream, **fields}
            response = await server.client.post(CHAT, json=body)
            assert response.status_code == 400, (fields, response.text)
            assert response.headers["content-type"] == "application/json"
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["param"] == param
            assert error["type"] == "invalid_request_error"
            assert param.split(".")[-1].split("[")[0] in error["message"]
        assert server.models[0].submits() == []
        await server.idle()


async def test_fields_not_served_are_named() -> None:
    async with Harness() as server:
        for fields in UNSERVED:
            response = await server.ask("hi", **fields)
            error = response.json()["error"]
            assert response.status_code == 400, fields
            assert error["code"] == "unsupported_feature"
            assert error["param"] == next(iter(fields))


async def test_tools_that_may_not_be_called_are_fine() -> None:
    async with Harness() as server:
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        response = await server.ask("hi", tools=tools, tool_choice="none", stream=True)
        assert response.status_code == 200


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
async def test_b11_media_parts_are_refused_and_never_fetched(kind: str) -> None:
    async with Harness() as server:
        part = {"type": kind, kind: {"url": f"{server.url}/fetched"}}
        content = [{"type": "text", "text": "What is it?"}, part]
        response = await server.client.post(
            CHAT, json={"messages": [{"role": "user", "content": content}]}
        )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "messages[0].content[1]"
        assert "takes no" in response.json()["error"]["message"]
        assert (await server.ask("still there")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"{'messages': []}",
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}',
        b'{"messages":[{"role":"user","content":"x"}],"deep":' + b"[" * 90_000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 9000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}]} trailing',
    ],
)
async def test_bad_json(body: bytes) -> None:
    async with Harness() as server:
        response = await server.client.post(CHAT, content=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert (await server.ask("next")).status_code == 200


async def test_mutated_bodies_are_answered_and_harm_nobody() -> None:
    rng = random.Random(4)
    base = json.dumps(
        chat_body("some text", temperature=0.5, stop=["a", "b"], logit_bias={"5": 1}, seed=3)
    ).encode()
    async with Harness(rules=Rules(queue_limit=100)) as server:
        for _ in range(300):
            body = bytearray(base)
            for _ in range(rng.randint(1, 4)):
                position = rng.randrange(len(body))
                body[position : position + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
            response = await server.client.post(CHAT, content=bytes(body))
            assert response.status_code in (200, 400), (bytes(body), response.text)
        assert (await server.ask("after")).status_code == 200
        await server.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_longer_than_the_context_names_both_numbers(stream: bool) -> None:
    async with Harness(FakeScript(max_ctx=64)) as server:
        response = await server.ask("x" * 64, stream=stream)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "64 tokens" in error["message"]
        assert "at most 64" in error["message"]
        assert (await server.ask("x" * 63)).status_code == 200
        await server.idle()


async def test_template_refusal() -> None:
    async with Harness() as server:
        response = await server.ask("refuse me")
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "template_error"
        await server.idle()


async def test_body_over_the_limit() -> None:
    async with Harness(rules=Rules(max_body_bytes=1000)) as server:
        response = await server.ask("x" * 2000)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
        assert (await server.ask("x" * 500)).status_code == 200


async def test_chunked_body_is_served_and_limited() -> None:
    async def pieces(data: bytes) -> Any:
        for start in range(0, len(data), 100):
            yield data[start : start + 100]

    async with Harness(rules=Rules(max_body_bytes=1000)) as server:
        small = json.dumps(chat_body("chunked")).encode()
        response = await server.client.post(CHAT, content=pieces(small))
        assert response.json()["choices"][0]["message"]["content"] == "chunked"
        large = json.dumps(chat_body("x" * 5000)).encode()
        response = await server.client.post(CHAT, content=pieces(large))
        assert response.status_code == 413


async def test_large_upload_still_sees_its_413(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is still sending when it is refused; closing at once would reset it."""
    monkeypatch.setattr(respond, "_LINGER_S", 60.0)
    async with Harness(rules=Rules(max_body_bytes=1000)) as server:
        async with server.slow_reader() as client:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n"
            await client.send_raw(head.encode())
            for _ in range(40):
                await client.send_raw(b"x" * 100_000)
            raw = await asyncio.wait_for(client.read_all(), 60)
        assert raw.startswith(b"HTTP/1.1 413")
        assert b"body_too_large" in raw


async def test_slow_upload_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respond, "_LINGER_S", 0.1)
    async with Harness(rules=Rules(upload_stall_s=0.1)) as server:
        async with server.slow_reader() as client:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
            await client.send_raw(head.encode() + b'{"mess')
            raw = await asyncio.wait_for(client.read_all(), 60)
        assert raw.startswith(b"HTTP/1.1 408")


async def test_media_type() -> None:
    async with Harness() as server:
        data = json.dumps(chat_body()).encode()
        for kind, status in [
            ("application/json; charset=utf-8", 200),
            ("application/vnd.x+json", 200),
            ("text/plain", 415),
            ("application/x-www-form-urlencoded", 415),
        ]:
            response = await server.client.post(CHAT, content=data, headers={"content-type": kind})
            assert response.status_code == status, kind
        assert response.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", "/api/tags", 404, "not_found"),
        ("GET", "/v1/models/none", 404, "model_not_found"),
    ],
)
async def test_wrong_path_or_method(method: str, path: str, status: int, code: str) -> None:
    async with Harness() as server:
        response = await server.client.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["code"] == code
        if status == 405:
            assert response.headers["allow"]


async def test_a_base_url_that_is_almost_right_is_told() -> None:
    meant = {
        "/chat/completions": CHAT,
        "/v1/v1/messages": "/v1/messages",
        "//v1//chat/completions/": CHAT,
        "/v1/health": "/health",
        "/v1/tokenize": "/tokenize",
        "/v1/nothing": "",
        "/v1/": "",
        "//": "",
    }
    async with Harness() as server:
        for path, right in meant.items():
            # As a whole, since a client joins them: of `//a` it would make a host.
            response = await server.client.post(f"{server.client.base_url}{path}")
            hint = f"; there is {right}: look at the client's base URL" if right else ""
            assert response.status_code == 404
            assert response.json()["error"]["message"] == f"There is no {path} here{hint}."


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000,
    ],
)
async def test_no_http_at_all(raw: bytes) -> None:
    async with Harness() as server:
        async with server.slow_reader() as client:
            try:
                await client.send_raw(raw)
                answer = await asyncio.wait_for(client.read_all(), 60)
            except ConnectionError:
                answer = b""  # It sent more than we cared to read.
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        assert (await server.ask("fine")).status_code == 200


async def test_bad_requests_cost_a_running_one_nothing() -> None:
    script = FakeScript(reply=list(b"steady " * 20), token_delay_s=0.002, max_concurrency=2)
    async with Harness(script, texts=(ByteText(),)) as server:
        running = asyncio.create_task(server.ask("go"))
        await server.running(1)
        for fields, _ in WRONG_FIELDS[:12]:
            response = await server.client.post(CHAT, json={"messages": [USER], **fields})
            assert response.status_code == 400
        answer = (await running).json()
        assert answer["choices"][0]["message"]["content"] == "steady " * 20
        assert len(server.models[0].submits()) == 1
        await server.idle()
