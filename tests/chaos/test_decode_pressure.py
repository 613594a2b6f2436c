"""Decode pressure, seen through HTTP: acceptance 12 of the routing behaviour.

Two real workers; the first one's KV pool holds only a part of what its streams grow to. Streams
lose their blocks and get them again, and no client can tell; new work goes to the other model
meanwhile; the status shows who is suspended; nothing is held in the end.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from server_process import ServerProcess, Stream, eventually, is_running

from luce.testing.tiny_models import tiny_llama

pytestmark = pytest.mark.anyio

POOL_TOKENS = 4096
NUM_TOKENS = 2800
SLOTS = 4
PROMPTS = ("one fish", "two fish", "red fish")
"""Together they grow to about twice the pool; each alone fits well."""


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    model = tiny_llama(tmp_path_factory.mktemp("model"), context_length=8192)
    options = f"""
        --load-balancing --load-balancing-primary-gpu cpu:0
        --model {model} --model-name tight --target-device cpu:0 --threads 1 --no-prefix-cache
        --max-ctx {POOL_TOKENS} --kv-pool-tokens {POOL_TOKENS} --max-concurrency {SLOTS}
        --host 127.0.0.1 --port 0 --routing-queue-limit 4 --shutdown-grace-s 60
        --model {model} --model-name spare --target-device cpu:1 --threads 1 --no-prefix-cache
        --max-ctx 512 --max-concurrency 1
    """
    command = [sys.executable, "-m", "luce", "serve", *options.split()]
    async with ServerProcess(command) as server:
        yield server


def start(server: ServerProcess, index: int) -> Stream:
    """Sampled, with a seed of its own: a lost or repeated draw would show."""
    return server.stream(
        PROMPTS[index], max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.9, seed=index
    )


async def start_all(server: ServerProcess) -> list[Stream]:
    """All prompts at once, in the tight model."""
    streams = []
    for index in range(len(PROMPTS)):
        streams.append(start(server, index))
        await server.until(lambda s, n=index + 1: s["models"][0]["in_flight"] == n)  # type: ignore[misc]
    return streams


async def suspended(server: ServerProcess) -> Any:
    """Wait until a sequence is suspended; the status that says so."""
    async with asyncio.timeout(60):
        while not (status := await server.status())["suspended_requests"]:
            await asyncio.sleep(0.01)
    return status


async def metric(server: ServerProcess, name: str, model: str) -> float:
    text = (await server.client.get("/metrics")).text
    found = re.search(rf'^{name}{{model="{model}"}} (\S+)$', text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


async def all_released(server: ServerProcess) -> None:
    """No request, no suspended one, and every block of both pools is free."""
    await server.idle()
    await server.until(lambda s: s["suspended_requests"] == 0)
    for model in ("tight", "spare"):
        async with asyncio.timeout(60):
            while await metric(server, "luce_kv_cache_usage_ratio", model):
                await asyncio.sleep(0.05)
        for name in ("running", "decoding", "suspended"):
            assert await metric(server, f"luce_requests_{name}", model) == 0


@pytest.fixture(scope="module")
async def alone(server: ServerProcess) -> list[str]:
    """What each prompt gets when it is alone."""
    texts = [(await start(server, index).end()).text for index in range(len(PROMPTS))]
    assert len(set(texts)) == len(PROMPTS)
    assert await metric(server, "luce_preemptions_total", "tight") == 0
    return texts


async def test_suspended_streams_resume_with_nothing_lost_and_new_work_goes_elsewhere(
    server: ServerProcess, alone: list[str]
) -> None:
    streams = await start_all(server)
    status = await suspended(server)
    # A slot is free, blocks are not: the worker says so and the other model takes it. Asked at
    # once: the pressure lasts for a thousand steps.
    routed, num_suspended = await asyncio.gather(
        server.ask("hi", max_tokens=2), metric(server, "luce_requests_suspended", "tight")
    )
    assert routed.json()["model"] == "spare"
    assert num_suspended >= 1
    tight = status["models"][0]
    # Who is suspended is in flight all the same; a stream may have ended by now.
    assert (tight["id"], tight["capacity"]) == ("tight", SLOTS)
    assert tight["status"]["suspended_requests"] == status["suspended_requests"] >= 1
    for active in (tight["in_flight"], tight["status"]["active_requests"]):
        assert status["suspended_requests"] < active <= len(PROMPTS)
    assert status["models"][1]["status"]["suspended_requests"] == 0
    for stream, text in zip(streams, alone, strict=True):
        await stream.end()
        assert stream.errors == []
        assert stream.models == {"tight"}
        assert stream.text == text
        assert stream.events[-2]["choices"][0]["finish_reason"] == "length"
        assert stream.events[-1] == "[DONE]"
    assert await metric(server, "luce_preemptions_total", "tight") >= 1
    await all_released(server)
    assert (await server.ask("hi", max_tokens=2)).json()["model"] == "tight"


async def test_everything_is_released_when_the_clients_of_suspended_streams_leave(
    server: ServerProcess,
) -> None:
    streams = await start_all(server)
    await suspended(server)
    await asyncio.gather(*(stream.leave() for stream in streams))
    await all_released(server)


async def test_suspended_streams_end_normally_at_a_shutdown(
    server: ServerProcess, alone: list[str]
) -> None:
    streams = await start_all(server)
    await suspended(server)
    server.process.send_signal(signal.SIGTERM)
    for stream, text in zip(streams, alone, strict=True):
        await stream.end()
        assert (stream.errors, stream.events[-1]) == ([], "[DONE]")
        assert stream.text == text
    assert await server.end(60) == 0
    await eventually(lambda: not any(map(is_running, server.pids().values())))
    assert not [line for line in server.log if "Traceback" in line]
