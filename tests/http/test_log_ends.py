"""How the end of a request is logged: its status, its level, why another model served."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from http_harness import CHAT, LOOPS, Harness, chat_body, connected, eventually

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

PROBES = ["/", "/health", "/metrics", "/status/json", "/props", "/v1/models", "/v1/models/big"]


def finished(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.getMessage() == "request finished"]


async def read_to_the_end(port: int, *, stream: bool, close: bool) -> bytes:
    """A request by hand; the connection is read until the server closes it, or all is there."""
    body = json.dumps(chat_body("hi", stream=stream)).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Connection: {'close' if close else 'keep-alive'}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with connected(port) as (reader, writer):
        writer.write(head.encode() + body)
        if close:
            return await reader.read()
        answer = await reader.readuntil(b"\r\n0\r\n\r\n" if stream else b"}}")
        writer.close()
        await writer.wait_closed()
        return answer


@pytest.mark.parametrize("anyio_backend", LOOPS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("close", [True, False])
async def test_who_has_read_all_is_served_whoever_closes(
    caplog: pytest.LogCaptureFixture, stream: bool, close: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with Harness() as server:
        for _ in range(20):
            answer = await read_to_the_end(server.port, stream=stream, close=close)
            assert answer.startswith(b"HTTP/1.1 200")
        await eventually(lambda: len(finished(caplog)) == 20)
        await server.idle()
    lines = [vars(record) for record in finished(caplog)]
    assert {line["status"] for line in lines} == {200}
    assert {line["finish"] for line in lines} == {"stop"}
    assert not any("error" in line for line in lines)


async def test_who_leaves_before_the_end_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Harness(FakeScript(hold_after=1)) as server:
        async with connected(server.port) as (reader, writer):
            body = json.dumps(chat_body("hi", stream=True)).encode()
            writer.write(b"POST %s HTTP/1.1\r\nHost: x\r\n" % CHAT.encode())
            writer.write(b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await reader.readuntil(b'"h"')
        await eventually(lambda: len(finished(caplog)) == 1)
    (line,) = (vars(record) for record in finished(caplog))
    assert (line["status"], line["error"]) == (499, "client_gone")


async def test_probes_are_no_noise(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    loaded = tmp_path / "loaded"
    async with Harness(FakeScript(load_until_file=str(loaded)), wait_ready=False) as server:
        assert (await server.client.get("/health")).status_code == 503
        loaded.touch()
        await server.ready()
        for path in PROBES:
            assert (await server.client.get(path)).status_code == 200, path
        await eventually(lambda: len(finished(caplog)) == len(PROBES) + 1)
    assert {record.levelno for record in finished(caplog)} == {logging.DEBUG}


async def test_a_primary_that_is_down_is_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Harness(FakeScript(), FakeScript(), FakeScript()) as server:
        for index in (0, 2):
            server.models[index].worker.crash()
        await eventually(lambda: server.models[0].handle.state.value == "lost")
        await eventually(lambda: server.models[2].handle.state.value == "lost")
        await server.ask("x")
        await eventually(lambda: len(finished(caplog)) == 1)
    (line,) = (vars(record) for record in finished(caplog))
    assert (line["model"], line["passed_over"]) == ("small", "big:restarting")


async def test_a_full_slot_is_why_the_next_model_served(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    held = FakeScript(hold_after=0, max_concurrency=1)
    async with Harness(held, FakeScript()) as server:
        first = asyncio.create_task(server.ask("x"))
        await eventually(lambda: server.models[0].worker.in_flight == 1)
        await server.ask("y")
        server.models[0].worker.release()
        await first
        await eventually(lambda: len(finished(caplog)) == 2)
    other, own = (vars(record) for record in finished(caplog))
    assert (other["model"], other["passed_over"]) == ("small", "big:busy")
    assert own["model"] == "big"
    assert "passed_over" not in own
