"""A client that leaves, in every state of its request: the worker stops, capacity comes back."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from http_harness import (
    CHAT,
    LOOPS,
    FakeModel,
    Harness,
    Rules,
    chat_body,
    connected,
    eventually,
)

from luce.testing.fake_script import FakeScript
from luce.testing.slow_reader import SlowReader

pytestmark = pytest.mark.anyio

Leave = Callable[[SlowReader], None]
LARGE_BODIES = Rules(max_body_bytes=4_000_000)
LEAVES: list[Leave] = [SlowReader.close, SlowReader.reset]


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


async def request(client: SlowReader, text: str = "hello", **fields: object) -> None:
    await client.send("POST", CHAT, json.dumps(chat_body(text, **fields)).encode())


def cancelled(model: FakeModel) -> list[str]:
    return [cancel.reason for cancel in model.cancels()]


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("stream", [False, True])
async def test_during_prefill(leave: Leave, stream: bool) -> None:
    async with Harness(FakeScript(hold_after=0)) as server:
        async with server.slow_reader() as client:
            await request(client, stream=stream)
            await eventually(lambda: server.models[0].worker.in_flight == 1)
            leave(client)
            await server.idle()
        assert cancelled(server.models[0]) == ["client_gone"]


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("stream", [False, True])
async def test_during_output(leave: Leave, stream: bool) -> None:
    # A second of output; if nobody has noticed by then, it waits for the cancel.
    script = FakeScript(reply=[97] * 4000, token_delay_s=0.005, hold_after=199)
    async with Harness(script) as server:
        async with server.slow_reader() as client:
            await request(client, stream=stream, max_tokens=4000)
            if stream:
                seen = b""
                while seen.count(b'"content":"a') < 3:
                    seen += await client.read(4096)
            else:
                await eventually(lambda: server.models[0].handle.num_decoding == 1)
            leave(client)
            await server.idle()
        assert cancelled(server.models[0]) == ["client_gone"]
        assert server.models[0].worker.retired[0].usage.completion_tokens < 200


@pytest.mark.parametrize("leave", LEAVES)
async def test_while_queued(leave: Leave) -> None:
    script = FakeScript(max_concurrency=1, hold_after=0)
    async with Harness(script) as server:
        running = asyncio.create_task(server.ask("first"))
        await server.running(1)
        async with server.slow_reader() as client:
            await request(client, "queued")
            await eventually(lambda: server.router.num_waiting == 1)
            leave(client)
            await eventually(lambda: server.router.num_waiting == 0)
        server.models[0].worker.release()
        assert (await running).status_code == 200
        await server.idle()
        assert server.models[0].prompts() == ["first"]


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("stream", [False, True])
async def test_behind_a_body_that_filled_the_buffers(leave: Leave, stream: bool) -> None:
    """The server stops reading while a large body piles up, and must go on for the end."""
    async with Harness(FakeScript(hold_after=0), rules=LARGE_BODIES) as server:
        async with server.slow_reader() as client:
            await request(client, stream=stream, user="x" * 2_000_000)
            await eventually(lambda: server.models[0].worker.in_flight == 1)
            leave(client)
            await server.idle()
        assert cancelled(server.models[0]) == ["client_gone"]


@pytest.mark.parametrize("leave", LEAVES)
async def test_while_queued_behind_a_large_body(leave: Leave) -> None:
    script = FakeScript(max_concurrency=1, hold_after=0)
    async with Harness(script, rules=LARGE_BODIES) as server:
        running = asyncio.create_task(server.ask("first"))
        await server.running(1)
        async with server.slow_reader() as client:
            await request(client, "queued", user="x" * 200_000)
            await eventually(lambda: server.router.num_waiting == 1)
            leave(client)
            await eventually(lambda: server.router.num_waiting == 0)
        server.models[0].worker.release()
        assert (await running).status_code == 200
        await server.idle()


async def test_while_sending_its_request() -> None:
    async with Harness() as server:
        async with server.slow_reader() as client:
            await client.send_raw(
                f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{{".encode()
            )
            await asyncio.sleep(0.05)
        await eventually(lambda: not server.http.server_state.connections)
        assert not server.http.server_state.tasks
        await server.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_half_closed_client_is_served(stream: bool) -> None:
    """A client may close its sending half and go on reading; it gets its whole answer."""
    script = FakeScript(reply=list(b"patience"), token_delay_s=0.05)
    async with Harness(script) as server:
        async with connected(server.port) as (reader, writer):
            body = json.dumps(chat_body("x", stream=stream)).encode()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
                % len(body)
                + body
            )
            writer.write_eof()
            raw = await asyncio.wait_for(reader.read(), 60)
        assert b"HTTP/1.1 200 OK" in raw
        assert (b"[DONE]" in raw) if stream else (b"patience" in raw)
        assert server.models[0].cancels() == []
        await server.idle()


async def test_capacity_returns_only_when_the_worker_has_let_go() -> None:
    """The listener knows the client is gone; the next request still has to wait for Retired."""
    script = FakeScript(max_concurrency=1, hold_after=1)
    async with Harness(script) as server:
        model = server.models[0]
        held: list[tuple[int, int]] = []
        model.handle.on_change.append(
            lambda: held.append((model.handle.in_flight, server.in_flight()))
        )
        async with server.slow_reader() as client:
            await request(client, stream=True)
            await eventually(lambda: model.handle.num_decoding == 1)
            client.reset()
            await server.idle()
        assert max(by_worker for by_worker, _ in held) == 1
        assert all(by_router >= by_worker for by_worker, by_router in held)


async def test_a_hundred_aborts_leave_nothing() -> None:
    script = FakeScript(reply=[97] * 500, token_delay_s=0.002, max_concurrency=4)
    async with Harness(script) as server:

        async def abort(index: int) -> None:
            async with server.slow_reader() as client:
                await request(client, stream=index % 2 == 0)
                await asyncio.sleep(0.002 * (index % 17))
                if index % 3:
                    client.reset()

        for start in range(0, 100, 10):
            await asyncio.gather(*(abort(index) for index in range(start, start + 10)))
        await server.idle()
        await eventually(lambda: len(server.http.server_state.connections) <= 1)
        answer = await server.ask("after", max_tokens=3)
        assert answer.status_code == 200


async def test_connection_with_unread_answer_counts_as_gone() -> None:
    """A killed client whose kernel still holds data resets; nothing of it may remain."""
    script = FakeScript(reply=[97] * 3000, token_delay_s=0.01)
    async with Harness(script) as server:
        sock = socket.create_connection(("127.0.0.1", server.port))
        body = json.dumps(chat_body("x", stream=True)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        await eventually(lambda: server.models[0].worker.in_flight == 1)
        sock.close()
        await server.idle()
