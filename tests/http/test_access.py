"""API keys: what is open, what is not, and in whose words it is refused (B77)."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from http_harness import CHAT, Harness, Rules, chat_body

from luce.listener import respond
from luce.listener.access import Access

pytestmark = pytest.mark.anyio

KEY = "sk-luce-right"
WRONG = "sk-luce-wrong"
GENERATING = [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"]
POSTED = [*GENERATING, "/v1/messages/count_tokens", "/tokenize", "/models/unload"]
LOOKED_AT = ["/v1/models", "/v1/models/big", "/props", "/status/json", "/metrics", "/nothing"]
BEARER = {"authorization": f"Bearer {KEY}"}
HEADERS: list[dict[str, str]] = [
    {},
    {"authorization": f"Bearer {WRONG}"},
    {"x-api-key": WRONG},
    {"authorization": KEY},
    {"authorization": f"Basic {KEY}"},
    {"api-key": KEY},
    {"x-api-key": f"{KEY},{KEY}"},
    {"cookie": f"key={KEY}"},
]


def guarded(*keys: str, **rules: Any) -> Harness:
    return Harness(rules=Rules(access=Access(keys or (KEY,)), **rules))


def spellings(path: str) -> list[str]:
    """Other ways to write a path, which must not be ways around the key."""
    return [
        path.removeprefix("/v1"),
        "/" + path,
        path + "/",
        path.upper(),
        path + ";x",
        path + "?key=" + KEY,
        "/health/.." + path,
        "/health/../" + path,
        "/%2f" + path[1:],
        "/health;" + path,
    ]


@pytest.mark.parametrize("headers", HEADERS)
async def test_b77_nothing_but_health_is_open(headers: dict[str, str]) -> None:
    async with guarded() as server:
        for path in POSTED:
            # Not even JSON: the key is looked at before the body.
            answer = await server.client.post(path, content=b"{", headers=headers)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in LOOKED_AT:
            answer = await server.client.get(path, headers=headers)
            assert answer.status_code == 401, path
            assert answer.json()["error"]["code"] == "invalid_api_key"
        for path in ("/v1/responses/resp_1", "/v1/models"):
            assert (await server.client.delete(path, headers=headers)).status_code == 401
        assert server.generator.num_started == 0


@pytest.mark.parametrize("path", [*POSTED, *LOOKED_AT])
async def test_b77_no_other_spelling_is_a_way_in(path: str) -> None:
    async with guarded() as server:
        for spelling in spellings(path):
            async with server.slow_reader() as client:
                for method in ("GET", "POST"):
                    await client.send(method, spelling, json.dumps(chat_body()).encode())
                    head = await client.read(65536)
                    assert head.startswith(b"HTTP/1.1 401"), (method, spelling, head)
                    break  # A refusal closes the connection.
        assert server.generator.num_started == 0


@pytest.mark.parametrize(
    "headers", [BEARER, {"x-api-key": KEY}, {"X-Api-Key": KEY, "authorization": "Bearer other"}]
)
async def test_b77_the_key_opens_all(headers: dict[str, str]) -> None:
    bodies: dict[str, dict[str, Any]] = {
        CHAT: chat_body(),
        "/v1/completions": {"prompt": "x"},
        "/v1/messages": {**chat_body(), "max_tokens": 4},
        "/v1/messages/count_tokens": chat_body(),
        "/v1/responses": {"input": "x"},
        "/tokenize": {"content": "x"},
    }
    async with guarded() as server:
        for path, body in bodies.items():
            answer = await server.client.post(path, json=body, headers=headers)
            # This model has no text for a raw prompt, which is what the request is refused for.
            expected = 400 if path == "/v1/completions" else 200
            assert answer.status_code == expected, (path, answer.text)
        for path in LOOKED_AT[:-1]:
            assert (await server.client.get(path, headers=headers)).status_code == 200, path
        assert (await server.client.get("/nothing", headers=headers)).status_code == 404


async def test_each_of_several_keys_opens() -> None:
    async with guarded("one-key", "two-key") as server:
        for key in ("one-key", "two-key"):
            answer = await server.client.get("/v1/models", headers={"x-api-key": key})
            assert answer.status_code == 200
        answer = await server.client.get("/v1/models", headers={"x-api-key": "one-keytwo-key"})
        assert answer.status_code == 401


async def test_each_api_refuses_in_its_own_words() -> None:
    async with guarded() as server:
        openai = (await server.client.post(CHAT, json=chat_body())).json()
        assert set(openai["error"]) == {"message", "type", "param", "code"}
        assert openai["error"]["type"] == "invalid_request_error"
        assert openai["error"]["code"] == "invalid_api_key"
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            answer = await server.client.post(path, json=chat_body())
            anthropic = answer.json()
            assert anthropic["type"] == "error"
            assert anthropic["error"]["type"] == "authentication_error"
            assert anthropic["request_id"] == answer.headers["x-request-id"]


async def test_health_is_open_and_says_little() -> None:
    async with guarded() as server:
        for path, body in [
            ("/health", {"status": "ok"}),
            ("/health/live", {"status": "alive"}),
            ("/", {"status": "ok"}),
        ]:
            answer = await server.client.get(path)
            assert (answer.status_code, answer.json()) == (200, body)
            assert (await server.client.head(path)).status_code == 200
        told = (await server.client.get("/health", headers=BEARER)).json()
        assert [model["id"] for model in told["models"]] == ["big"]
        assert (await server.client.get("/", headers=BEARER)).json()["name"] == "luce"


@pytest.mark.parametrize(
    "value", [b"Bearer \xc3\xa4", b"Bearer \xff\x80", b"Bearer " + b"a" * 30_000]
)
async def test_strange_header_bytes_are_a_401(value: bytes) -> None:
    async with guarded() as server:
        async with server.slow_reader() as client:
            await client.send_raw(
                b"GET /props HTTP/1.1\r\nHost: x\r\nAuthorization: " + value + b"\r\n\r\n"
            )
            assert (await client.read(65536)).startswith(b"HTTP/1.1 401")


async def test_an_upload_without_a_key_is_not_read_and_sees_its_401(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(respond, "_LINGER_S", 60.0)
    async with guarded(max_body_bytes=10_000_000) as server:
        async with server.slow_reader() as client:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n"
            await client.send_raw(head.encode())
            for _ in range(10):
                await client.send_raw(b"x" * 100_000)
            raw = b""
            while b"}}" not in raw:
                raw += await asyncio.wait_for(client.read(65536), 60)
        assert raw.startswith(b"HTTP/1.1 401")
        assert b"connection: close" in raw.lower()


async def test_who_waits_for_100_continue_is_refused_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(respond, "_LINGER_S", 0.1)
    async with guarded() as server:
        async with server.slow_reader() as client:
            head = (
                f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
                "Expect: 100-continue\r\n\r\n"
            )
            await client.send_raw(head.encode())
            raw = await asyncio.wait_for(client.read_all(), 60)
        assert raw.startswith(b"HTTP/1.1 401")
        assert b"100 Continue" not in raw


async def test_keys_are_nowhere_in_logs_and_answers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with guarded() as server:
            seen = [(await server.client.get(path, headers=BEARER)).text for path in LOOKED_AT[:-1]]
            await server.client.post(CHAT, json=chat_body(), headers={"x-api-key": KEY})
            refused = await server.client.post(CHAT, json={}, headers={"x-api-key": WRONG})
    lines = [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
    # The client of this test logs too, but no headers.
    assert any("request finished" in line for line in lines)
    for key in (KEY, WRONG):
        assert not [text for text in [*lines, *seen, refused.text] if key in text]
