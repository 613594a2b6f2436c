"""Clients that read slowly or not at all: they delay nobody and are dropped in the end."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest
from http_harness import CHAT, LOOPS, Harness, Rules, chat_body, eventually

from luce.listener import sse
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

LONG = FakeScript(reply=[97] * 60_000, tokens_per_step=20, max_ctx=70_000, kv_pool_tokens=10**6)
"""About 0.6 MB of events in 3,000 chunks; more than loopback's buffers take from a small window."""


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


async def request(server: Harness, client: object, **fields: object) -> None:
    await client.send("POST", CHAT, json.dumps(chat_body("x", **fields)).encode())  # type: ignore[attr-defined]


async def test_reader_that_stalls_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_PENDING_BYTES", 10**9)
    async with Harness(LONG, rules=Rules(stall_s=0.5)) as server:
        async with server.slow_reader() as client:
            started = time.monotonic()
            await request(server, client, stream=True)
            await server.running(1)
            await server.idle()
            assert time.monotonic() - started >= 0.5
            with pytest.raises(ConnectionResetError):
                await client.read_all()


async def test_too_much_pending_drops_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_PENDING_BYTES", 50_000)
    # In two parts: what comes while nothing is pending is sent, however much it is.
    halves = msgspec.structs.replace(LONG, hold_after=30_000)
    async with Harness(halves, rules=Rules(stall_s=60)) as server:
        async with server.slow_reader() as client:
            await request(server, client, stream=True)
            await server.running(1)
            connections = server.http.server_state.connections
            await eventually(
                lambda: server.in_flight() == 0 or any(c._client.pending_bytes for c in connections)
            )
            server.models[0].worker.release()
            await server.idle()
            with pytest.raises(ConnectionResetError):
                await client.read_all()


async def test_slow_but_reading_client_gets_everything() -> None:
    """Progress within each stall time keeps a client, however long the whole takes."""
    script = FakeScript(reply=[97] * 9000, tokens_per_step=20, max_ctx=20_000)
    async with Harness(script, rules=Rules(stall_s=1.0)) as server:
        async with server.slow_reader() as client:
            await request(server, client, stream=True)
            raw = await client.read_for(1.6, 50_000)
            raw += await asyncio.wait_for(client.read(10**6), 60)
            while not raw.endswith(b"0\r\n\r\n"):
                raw += await asyncio.wait_for(client.read(10**6), 60)
        assert b"[DONE]" in raw
        await server.idle()


async def test_reservation_lasts_until_the_output_is_drained() -> None:
    script = FakeScript(reply=[97] * 9000, tokens_per_step=20, max_ctx=20_000)
    async with Harness(script, rules=Rules(stall_s=10)) as server:
        async with server.slow_reader() as client:
            await request(server, client, stream=True)
            await eventually(lambda: len(server.models[0].worker.retired) == 1)
            await asyncio.sleep(0.1)
            assert server.in_flight() == 1
            raw = b""
            while not raw.endswith(b"0\r\n\r\n"):
                raw += await asyncio.wait_for(client.read(10**6), 60)
            await server.idle()


async def test_whole_answer_to_a_stalled_reader_is_dropped() -> None:
    async with Harness(LONG, rules=Rules(stall_s=0.3)) as server:
        async with server.slow_reader() as client:
            await request(server, client)
            await eventually(lambda: len(server.models[0].submits()) == 1)
            await server.idle()
            with pytest.raises(ConnectionResetError):
                await client.read_all()


async def test_slow_reader_never_delays_another() -> None:
    script = FakeScript(reply=[97] * 3000, tokens_per_step=20, token_delay_s=0.001, max_ctx=20_000)
    async with Harness(script, rules=Rules(stall_s=60)) as server:
        async with server.slow_reader() as client:
            await request(server, client, stream=True)
            await server.running(1)
            started = time.monotonic()
            answers = await asyncio.gather(
                *(server.ask("quick", stream=True, max_tokens=200) for _ in range(2))
            )
            assert time.monotonic() - started < 30
            assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
            client.reset()
            await server.idle()
