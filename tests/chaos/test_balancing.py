"""Two models in processes of their own, one of them killed in every state of a request.

Its requests end once, with a clear error or with the other model's answer; the other model's
requests never notice; the dead one comes back by itself; nothing is left held.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from server_process import (
    BYTE_A,
    CHAT,
    ServerProcess,
    Stream,
    chat_body,
    eventually,
    fake_server,
    is_running,
)

from luce.testing.slow_reader import SlowReader
from luce.testing.tiny_models import tiny_llama

pytestmark = pytest.mark.anyio

NEIGHBOUR = {"reply": [BYTE_A] * 250, "token_delay_s": 0.005, "max_concurrency": 2}
"""Streams for a little more than a second."""

LONG = {
    "reply": [BYTE_A] * 20_000,
    "tokens_per_step": 5,
    "max_ctx": 30_000,
    "kv_pool_tokens": 10**6,
}
"""About 0.9 MB of events at once: often more than the kernel takes for one that does not read."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


def json_bytes(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def assert_unharmed(stream: Any) -> None:
    assert stream.models == {"small"}
    assert stream.text == "a" * 250
    assert stream.errors == []
    assert stream.events[-1] == "[DONE]"


def one_slot(go_on: Path) -> dict[str, Any]:
    """A worker that serves one at a time, and each to its end only once the file is there."""
    return {**NEIGHBOUR, "max_concurrency": 1, "hold_after": 3, "hold_until_file": str(go_on)}


async def one_each(server: ServerProcess) -> list[Stream]:
    """A held stream with output on each model."""
    streams = []
    for index, name in enumerate(("big", "small")):
        streams.append(server.stream(name))
        await server.until(lambda s, i=index: s["models"][i]["in_flight"] == 1)  # type: ignore[misc]
        await eventually(lambda: streams[-1].text == "aaa")
    return streams


async def back_and_idle(server: ServerProcess, killed: int) -> None:
    """The killed model serves again, nothing is held by anybody."""
    await server.back("big", killed)
    await server.idle()
    assert (await server.model_status("big"))["restarts"] == 1
    assert (await server.model_status("small"))["restarts"] == 0


async def test_killed_while_a_request_is_queued(model: Path, tmp_path: Path) -> None:
    """The waiter is nobody's yet: it goes on waiting and is served."""
    go_on = tmp_path / "go on"
    scripts = {"big": one_slot(go_on), "small": one_slot(go_on)}
    async with fake_server(model, scripts) as server:
        running, neighbour = await one_each(server)
        queued = server.stream("three")
        await server.until(lambda s: s["waiting"] == 1)
        killed = server.kill("big")
        go_on.touch()
        await running.end()
        assert running.errors == ["worker_lost"]
        assert running.events[-1] == "[DONE]"
        assert_unharmed(await neighbour.end())
        await queued.end()
        assert (queued.status, queued.errors, queued.text) == (200, [], "a" * 250)
        await back_and_idle(server, killed)


@pytest.mark.parametrize("stream", [False, True])
async def test_killed_before_it_has_answered_to_the_submission(model: Path, stream: bool) -> None:
    """Nothing was sent and another model can serve: it does."""
    async with fake_server(model, {"big": {"stall_reading": True}, "small": NEIGHBOUR}) as server:
        asked = asyncio.create_task(server.ask("x", stream=stream))
        await server.until(lambda s: s["models"][0]["in_flight"] == 1)
        killed = server.kill("big")
        answer = await asked
        assert answer.status_code == 200
        assert b'"model":"small"' in answer.content
        assert b'"model":"big"' not in answer.content
        await server.back("big", killed)
        await server.idle()


@pytest.mark.parametrize(("state", "held_after"), [("prefill", 0), ("streaming", 3)])
async def test_killed_after_admission(
    model: Path, tmp_path: Path, state: str, held_after: int
) -> None:
    """Admitted requests stay on their model, so they end with it: once, with one clear error."""
    may_load = tmp_path / "may load"
    may_load.touch()
    big = {
        "max_concurrency": 2,
        "hold_after": held_after,
        "reply": [BYTE_A] * 9,
        "load_until_file": str(may_load),
    }
    async with fake_server(model, {"big": big, "small": NEIGHBOUR}) as server:
        streamed = server.stream("x")
        whole = asyncio.create_task(server.ask("x"))
        await server.until(lambda s: s["models"][0]["in_flight"] == 2)
        neighbour = server.stream("y")
        phase = "prefill" if state == "prefill" else "decode"
        await server.until(lambda s: s["models"][0]["status"]["phase"] == phase)
        await eventually(lambda: len(streamed.text) == held_after and neighbour.text)
        may_load.unlink()
        killed = server.kill("big")
        await streamed.end()
        assert streamed.text == "a" * held_after
        assert streamed.errors == ["worker_lost"]
        assert streamed.events[-1] == "[DONE]"
        refused = await whole
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "worker_lost"
        assert refused.headers["retry-after"]
        while_away = await server.ask("z", max_tokens=1)
        assert while_away.json()["model"] == "small"
        may_load.touch()
        assert_unharmed(await neighbour.end())
        await back_and_idle(server, killed)


async def test_killed_while_an_answer_is_drained(model: Path) -> None:
    """The worker had finished: its death takes nothing from a client that reads slowly."""
    async with fake_server(model, {"big": LONG, "small": NEIGHBOUR}) as server:
        async with SlowReader("127.0.0.1", server.port) as client:
            body = json_bytes(chat_body("x", stream=True, max_tokens=len(LONG["reply"]) + 1))
            await client.send("POST", CHAT, body, {"Connection": "close"})
            begun = await client.read(100)
            await server.until(lambda s: s["active_requests"] == 0)
            killed = server.kill("big")
            await eventually(lambda: not is_running(killed))
            raw = begun + await client.read_all()
        assert sum(map(len, re.findall(rb'"content":"(a+)"', raw))) == len(LONG["reply"])
        assert b"error" not in raw
        assert raw.count(b"[DONE]") == 1
        await server.back("big", killed)
        await server.idle()


async def test_killed_during_shutdown(model: Path) -> None:
    """SIGTERM, then a worker dies: its stream ends in an error, the other's ends as it should."""
    scripts = {"big": {"max_concurrency": 1, "hold_after": 3}, "small": NEIGHBOUR}
    async with fake_server(model, scripts) as server:
        doomed = server.stream("doomed")
        await server.until(lambda s: s["models"][0]["in_flight"] == 1)
        neighbour = server.stream("y")
        await eventually(lambda: len(doomed.text) == 3 and neighbour.text)
        await server.terminate()
        assert not doomed.is_over
        server.kill("big")
        await doomed.end()
        assert doomed.errors == ["worker_lost"]
        assert_unharmed(await neighbour.end())
        assert await server.end() == 0


async def test_both_killed_at_once(model: Path) -> None:
    hold = {"max_concurrency": 1, "hold_after": 1}
    async with fake_server(model, {"big": hold, "small": hold}) as server:
        running = [server.stream("one")]
        await server.until(lambda s: s["models"][0]["in_flight"] == 1)
        running.append(server.stream("two"))
        await server.until(lambda s: s["models"][1]["in_flight"] == 1)
        queued = server.stream("three")
        await server.until(lambda s: s["waiting"] == 1)
        killed = [server.kill(name) for name in ("big", "small")]
        for stream in running:
            assert (await stream.end()).errors == ["worker_lost"]
        for name, pid in zip(("big", "small"), killed, strict=True):
            await server.back(name, pid)
        await eventually(lambda: queued.text)
        assert queued.status == 200
        await queued.leave()
        await server.idle()


# --- the end of the server ------------------------------------------------------------------------


async def test_sigterm_with_everything_in_progress(model: Path, tmp_path: Path) -> None:
    """A stream on each model, a waiter, a half-sent upload: each ends as it should, exit 0."""
    go_on = tmp_path / "go on"
    stream_a = one_slot(go_on)
    async with fake_server(model, {"big": stream_a, "small": stream_a}) as server:
        running = await one_each(server)
        waiting = [server.stream("three"), asyncio.create_task(server.ask("four"))]
        await server.until(lambda s: s["waiting"] == 2)
        async with SlowReader("127.0.0.1", server.port) as uploader:
            await uploader.send_raw(
                f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode()
            )
            await asyncio.sleep(0.1)
            server.process.send_signal(signal.SIGTERM)
            streamed = await waiting[0].end()  # type: ignore[union-attr]
            whole = await waiting[1]  # type: ignore[misc]
            assert (streamed.status, streamed.errors) == (503, ["shutting_down"])
            assert whole.status_code == 503
            assert not any(stream.is_over for stream in running)
            go_on.touch()
            for stream in running:
                await stream.end()
                assert stream.text == "a" * 250
                assert stream.events[-2]["choices"][0]["finish_reason"] == "stop"
                assert stream.events[-1] == "[DONE]"
            assert await server.end() == 0
        workers = server.pids()
        await eventually(lambda: not any(map(is_running, workers.values())))


async def test_grace_is_for_all_models_and_a_second_signal_ends_it(model: Path) -> None:
    endless = {"hold_after": 1, "ignore_shutdown": True}
    async with fake_server(
        model, {"big": endless, "small": endless}, shutdown_grace_s=100
    ) as server:
        running = [server.stream("one"), server.stream("two")]
        await eventually(lambda: all(stream.text for stream in running))
        await server.terminate()
        assert server.process.poll() is None
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert await server.end() == 0
        assert time.monotonic() - started < 50  # The grace is 100 seconds.
        for stream in running:
            await stream.leave()


async def test_a_stalled_reader_does_not_hold_up_the_end(model: Path) -> None:
    scripts = {"big": LONG, "small": NEIGHBOUR}
    async with fake_server(model, scripts, shutdown_grace_s=1) as server:
        async with SlowReader("127.0.0.1", server.port) as client:
            await client.send("POST", CHAT, json_bytes(chat_body("x", stream=True)))
            await server.until(lambda s: s["total_requests"] == 1)
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert await server.end() == 0
            assert time.monotonic() - started < 30  # Read to its end it would take minutes.


@pytest.mark.parametrize("state", ["serving", "loading"])
async def test_no_worker_outlives_a_killed_listener(model: Path, state: str) -> None:
    """Both workers, deaf to signals: the end of their sockets ends them."""
    deaf = {"ignore_shutdown": True, "hold_after": 1}
    async with fake_server(model, {"big": deaf, "small": deaf}) as server:
        running = server.stream("x")
        await eventually(lambda: running.text)
        if state == "loading":
            killed = server.kill("small")
            await eventually(lambda: not is_running(killed))
            await eventually(lambda: len(children(server.process.pid)) == 2)
        workers = children(server.process.pid)
        assert len(workers) == 2
        server.process.kill()
        await eventually(lambda: not any(map(is_running, workers)))
        await running.leave()


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(child) for child in found.split() if is_running(int(child))]
