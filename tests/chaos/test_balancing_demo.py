"""Load balancing through the command line, with two workers that really hold the demo model.

One server for all tests of the module; the last one ends it. The primary is the second block,
chosen by its device; it has the smaller context.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, Stream, eventually, is_running

pytestmark = pytest.mark.anyio

PRIMARY_CTX, OTHER_CTX = 256, 768
SLOTS = 2
NUM_TOKENS = 16
LONG_TOKENS = 88
QUESTION = "Count from one to fifty."


def command(demo_model: Path) -> list[str]:
    words = f"""
        --load-balancing --load-balancing-primary-gpu cpu:1
        --model {demo_model} --model-name other --target-device cpu:0 --threads 1
        --max-ctx {OTHER_CTX} --max-concurrency {SLOTS}
        --host 127.0.0.1 --port 0 --routing-queue-limit 1 --shutdown-grace-s 60
        --model {demo_model} --model-name primary --target-device cpu:1 --threads 1
        --max-ctx {PRIMARY_CTX} --max-concurrency {SLOTS}
    """
    return [sys.executable, "-m", "luce", "serve", *words.split()]


@pytest.fixture(scope="module")
async def server(demo_model: Path) -> AsyncIterator[ServerProcess]:
    async with ServerProcess(command(demo_model)) as server:
        yield server


@pytest.fixture(scope="module")
async def expected(server: ServerProcess) -> str:
    """What either model says to the question, alone and undisturbed."""
    return (await stream(server, LONG_TOKENS).end()).text


def stream(server: ServerProcess, num_tokens: int = NUM_TOKENS, text: str = QUESTION) -> Stream:
    return server.stream(text, max_tokens=num_tokens, ignore_eos=True, temperature=0)


async def fill(server: ServerProcess, model: str) -> list[Stream]:
    """Streams in every slot of a model, all of them with output, which is then paused."""
    streams = await fill_once(server, model)
    while in_flight(await server.status(), model) != SLOTS:
        server.resume(model)  # One was over before it was paused.
        await asyncio.gather(*(stream.end() for stream in streams))
        streams = await fill_once(server, model)
    return streams


async def fill_once(server: ServerProcess, model: str) -> list[Stream]:
    streams: list[Stream] = []
    for _ in range(SLOTS):
        streams.append(stream(server, LONG_TOKENS))
        await server.until(lambda s: in_flight(s, model) == len(streams))
        server.resume(model)
        await eventually(lambda: all(stream.text for stream in streams))
        server.pause(model)
    return streams


def in_flight(status: Any, model: str) -> int:
    return next(int(m["in_flight"]) for m in status["models"] if m["id"] == model)


def resume(server: ServerProcess) -> None:
    for model in ("primary", "other"):
        server.resume(model)


async def leave(*streams: Stream) -> None:
    await asyncio.gather(*(stream.leave() for stream in streams))


async def test_the_primary_is_chosen_by_its_device_and_serves_every_name(
    server: ServerProcess,
) -> None:
    listed = (await server.client.get("/v1/models")).json()["data"]
    assert [(model["id"], model["context_length"]) for model in listed] == [
        ("primary", PRIMARY_CTX),
        ("other", OTHER_CTX),
    ]
    status = await server.status()
    assert (status["routing"], status["queue_limit"]) == ("primary-first", 1)
    assert [model["capacity"] for model in status["models"]] == [SLOTS, SLOTS]
    for name in (None, "auto", "other", "gpt-4o"):
        answer = (await server.ask(QUESTION, model=name, max_tokens=1)).json()
        assert answer["model"] == "primary"


async def test_misfits_go_to_the_other_or_get_a_400(server: ServerProcess) -> None:
    for words, model in ((100, "primary"), (400, "other")):
        answer = (await server.ask("word " * words, max_tokens=1)).json()
        assert answer["model"] == model
        assert answer["usage"]["prompt_tokens"] > words
    refused = await server.ask("word " * 1000)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    capped = (await server.ask("Say hi.", max_tokens=400, stop=["\n"])).json()
    assert capped["model"] == "other"
    cut = (await server.ask("Say hi.", max_tokens=100_000, stop=["\n"])).json()
    assert cut["model"] == "other"
    assert cut["usage"]["total_tokens"] <= OTHER_CTX


async def test_busy_primary_falls_back_then_requests_wait_then_503(
    server: ServerProcess, expected: str
) -> None:
    on_primary = await fill(server, "primary")
    fallen = await stream(server).end()
    assert fallen.models == {"other"}
    assert fallen.errors == []
    assert expected.startswith(fallen.text)
    on_other = await fill(server, "other")
    waiting = stream(server)
    await server.until(lambda s: s["waiting"] == 1)
    refused = await server.ask("no room for this")
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    server.resume("other")
    await leave(on_other[0])
    await waiting.end()
    assert waiting.models == {"other"}
    assert expected.startswith(waiting.text)
    assert waiting.events[-1] == "[DONE]"
    server.resume("primary")
    for kept in (*on_primary, on_other[1]):
        await kept.end()
        assert kept.text == expected
    assert [kept.models for kept in on_primary] == [{"primary"}] * SLOTS
    await server.idle()


async def test_waiter_that_leaves_is_forgotten(server: ServerProcess) -> None:
    running = [*await fill(server, "primary"), *await fill(server, "other")]
    waiting = stream(server)
    await server.until(lambda s: s["waiting"] == 1)
    await waiting.leave()
    await server.until(lambda s: s["waiting"] == 0)
    resume(server)
    await leave(*running)
    await server.idle()


async def test_primary_killed_with_a_request_in_every_state(
    server: ServerProcess, expected: str
) -> None:
    """One streams, one is in prefill, one waits; the other model streams twice and never knows."""
    streaming = stream(server, LONG_TOKENS)
    await eventually(lambda: streaming.text)
    server.pause("primary")
    prefilling = stream(server, 60, "word " * 150)
    await server.until(lambda s: in_flight(s, "primary") == SLOTS)
    on_other = await fill(server, "other")
    queued = stream(server)
    await server.until(lambda s: s["waiting"] == 1)
    server.resume("primary")
    await eventually(lambda: prefilling.status)
    other_pid, killed = server.pids()["other"], server.kill("primary")
    server.resume("other")
    for stream_ in (streaming, prefilling):
        await stream_.end()
        assert stream_.errors == ["worker_lost"]
        assert stream_.events[-1] == "[DONE]"
    assert expected.startswith(streaming.text)
    await queued.end()
    assert queued.errors == []
    assert expected.startswith(queued.text)
    for kept in on_other:
        await kept.end()
        assert kept.text == expected
        assert kept.models == {"other"}
    await server.back("primary", killed)
    assert server.pids()["other"] == other_pid
    again = await stream(server, LONG_TOKENS).end()
    assert again.models == {"primary"}
    assert again.text == expected
    await server.idle()


async def test_sigterm_drains_both_and_a_worker_killed_meanwhile_takes_only_its_own(
    server: ServerProcess, expected: str
) -> None:
    on_primary = await fill(server, "primary")
    on_other = await fill(server, "other")
    waiting = stream(server)
    await server.until(lambda s: s["waiting"] == 1)
    server.process.send_signal(signal.SIGTERM)
    await waiting.end()
    assert (waiting.status, waiting.errors) == (503, ["shutting_down"])
    server.kill("primary")
    server.resume("other")
    for doomed in on_primary:
        await doomed.end()
        assert doomed.errors == ["worker_lost"]
    for kept in on_other:
        await kept.end()
        assert kept.text == expected
        assert kept.events[-1] == "[DONE]"
    assert await server.end() == 0
    await eventually(lambda: not any(map(is_running, server.pids().values())))
    assert not [line for line in server.log if "Traceback" in line]
