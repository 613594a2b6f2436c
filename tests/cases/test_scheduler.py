"""Bug log, area scheduler: B53, clients that leave; B55 and others are in `test_real_model.py`."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from case_client import TEXT, minimal, real_server
from http_harness import CHAT, Harness, eventually
from scripted_text import writing
from server_process import ServerProcess

pytestmark = pytest.mark.anyio

RELEASE_S = 60.0
"""A slot should be free again in about a second; here only the end of waiting for it."""


def long_story(stream: bool) -> bytes:
    return json.dumps(minimal(CHAT, max_tokens=2000, stream=stream)).encode()


def one_slot(hold_after: int | None, token_delay_s: float = 0.001) -> Harness:
    script = writing(
        TEXT,
        "a" * 1900,
        max_concurrency=1,
        hold_after=hold_after,
        token_delay_s=token_delay_s,
        late_cancel=hold_after is None,
    )
    return Harness(script, texts=(TEXT,))


async def served_soon(server: Harness) -> None:
    """The slot is free soon after the client has gone, and the next one gets it."""
    await eventually(lambda: server.in_flight() == 0, RELEASE_S)
    server.models[0].worker.release()
    answer = asyncio.create_task(server.ask("next", max_tokens=1))
    await eventually(lambda: server.models[0].worker.in_flight == 1 or answer.done())
    server.models[0].worker.release()
    assert (await answer).status_code == 200
    await server.idle()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("hold_after", [0, 3, None])
async def test_case_b53_a_client_that_leaves_frees_its_slot(
    stream: bool, hold_after: int | None
) -> None:
    """In prefill (0), after three tokens, while tokens flow; streamed or not."""
    async with one_slot(hold_after, token_delay_s=0.02) as server:
        async with server.slow_reader() as client:
            await client.send("POST", CHAT, long_story(stream))
            await server.running(1)
            if stream and hold_after != 0:
                while b"content" not in await client.read(4096):
                    pass
        await served_soon(server)
        (retired, _) = server.models[0].worker.retired
        assert retired.finish == "cancelled"
        assert retired.usage.completion_tokens < 1900


async def test_case_b53_a_client_that_leaves_the_queue() -> None:
    async with one_slot(0) as server:
        running = asyncio.create_task(server.ask("first", max_tokens=1))
        await server.running(1)
        async with server.slow_reader() as client:
            await client.send("POST", CHAT, long_story(True))
            await eventually(lambda: server.router.num_waiting == 1)
        await eventually(lambda: server.router.num_waiting == 0, RELEASE_S)
        server.models[0].worker.release()
        assert (await running).status_code == 200
        assert len(server.models[0].submits()) == 1
        await server.idle()


async def test_case_b53_a_hundred_aborts_leave_nothing() -> None:
    async with one_slot(None) as server:
        loop, both = asyncio.get_running_loop(), threading.Barrier(2)
        await asyncio.gather(*(loop.run_in_executor(server._executor, both.wait) for _ in range(2)))
        threads = threading.active_count()
        for index in range(100):
            async with server.slow_reader() as client:
                await client.send("POST", CHAT, long_story(index % 2 == 0))
                await server.running(1)
            await eventually(lambda: server.in_flight() == 0)
        await server.idle()
        assert threading.active_count() <= threads + 1
        assert server.models[0].handle.in_flight == 0
        assert server.models[0].handle.stats.free_blocks > 0
        assert (await server.ask("next", max_tokens=1)).status_code == 200


async def test_case_b53_a_real_worker_stops_computing(tiny_path: Path) -> None:
    options = ("--max-ctx", "512", "--max-concurrency", "1", "--no-prefix-cache")
    async with real_server(tiny_path, *options) as server:
        for prompt, num_chunks in (("long story", 3), ("word " * 60, 0)):
            stream = server.stream(prompt, max_tokens=400, ignore_eos=True)
            await eventually(lambda s=stream, n=num_chunks: len(s.events) >= n and s)
            await stream.leave()
            await server.until(lambda s: s["active_requests"] == 0)
        await server.idle()
        steps = [await steps_of(server) for _ in range(2)]
        assert steps[0] == steps[1]
        assert (await server.ask("next", max_tokens=1)).status_code == 200


async def steps_of(server: ServerProcess) -> str:
    """The worker's count of steps, half a second from now."""
    await asyncio.sleep(0.5)
    text = str((await server.client.get("/metrics")).text)
    return next(line for line in text.splitlines() if line.startswith("luce_engine_steps_total"))
