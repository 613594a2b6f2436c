"""Models that take turns, and models that load on demand, as processes with real workers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from server_process import CHAT, ServerProcess, Stream, chat_body, eventually, is_running

from luce.testing.tiny_models import tiny_llama

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def serving(flags: str, **models: Path) -> ServerProcess:
    words = f"-m luce serve --model-routing name {flags} --port 0".split()
    for name, path in models.items():
        words += f"--model {path} --model-name {name} --target-device cpu:0".split()
        words += "--max-ctx 512 --max-concurrency 2".split()
    return ServerProcess([sys.executable, *words])


async def ask(server: ServerProcess, model: str | None, **fields: Any) -> Any:
    body = chat_body(model=model, max_tokens=4, temperature=0, **fields)
    return await asyncio.wait_for(server.client.post(CHAT, json=body), 60)


def finish_of(stream: Stream) -> str | None:
    """Why a stream ended; None: it broke off."""
    chunks = [event for event in stream.events if event != "[DONE]" and event.get("choices")]
    reason: str | None = chunks[-1]["choices"][0]["finish_reason"]
    return reason if stream.events[-1] == "[DONE]" else None


async def caught(server: ServerProcess, num_tokens: int) -> Stream:
    """A stream of `a` in the middle, its worker paused."""
    stream = await paused(server, num_tokens)
    while stream.is_over or not (await server.model_status("a"))["in_flight"]:
        server.resume("a")  # It was over before it was paused.
        await stream.end()
        stream = await paused(server, num_tokens)
    return stream


async def paused(server: ServerProcess, num_tokens: int) -> Stream:
    stream = server.stream("x", model="a", max_tokens=num_tokens, ignore_eos=True, temperature=0)
    await eventually(lambda: stream.text)
    server.pause("a")
    return stream


async def residencies(server: ServerProcess) -> dict[str, str]:
    return {m["id"]: m["residency"] for m in (await server.status())["models"]}


async def test_two_blocks_under_one_budget_swap_while_streams_run(tiny_path: Path) -> None:
    flags = "--swap-residency --device-memory cpu:0=1GiB"
    async with serving(flags, a=tiny_path, b=tiny_path) as server:
        stream = await caught(server, 300)
        asking = asyncio.create_task(ask(server, "b"))
        await server.until(lambda s: s["models"][1]["waiting_for_residency"] == 1)
        server.resume("a")
        assert (await asking).json()["model"] == "b"
        ended = await stream.end()
        assert finish_of(ended) == "length"
        assert await residencies(server) == {"a": "evicted", "b": "resident"}
        again = await server.stream(
            "x", model="a", max_tokens=300, ignore_eos=True, temperature=0
        ).end()
        assert again.text == ended.text


async def test_a_worker_killed_in_mid_swap_costs_nobody_else_anything(tiny_path: Path) -> None:
    async with serving("--swap-residency", a=tiny_path, b=tiny_path) as server:
        pids = server.pids()
        os.kill(pids["b"], signal.SIGSTOP)  # It will not answer the reinstatement.
        asking = asyncio.create_task(ask(server, "b"))
        await server.until(lambda s: s["swap_active"])
        await server.until(lambda s: s["models"][1]["residency_state"] == "loading")
        os.kill(pids["b"], signal.SIGKILL)
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
        assert (await ask(server, "a")).json()["model"] == "a"
        failed = (await server.status())["models"][1]
        assert (failed["residency"], failed["restarts"]) == ("failed", 0)
        assert failed["failed_retry_in_ms"] > 0
        assert not is_running(pids["b"])


async def test_a_file_that_does_not_load_again_fails_that_model_alone(
    tiny_path: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(tiny_path, tmp_path / "b.gguf"))
    async with serving("--swap-residency --swap-host-mib 0", a=tiny_path, b=copy) as server:
        copy.unlink()  # The mapped one lives as long as its process.
        copy.write_bytes(b"GGUF no more")
        os.kill(server.pids()["b"], signal.SIGKILL)
        await server.until(lambda s: s["models"][1]["residency_state"] == "unloaded")
        answer = await ask(server, "b")
        assert answer.status_code == 503
        assert (await ask(server, "a")).json()["model"] == "a"
        assert await residencies(server) == {"a": "resident", "b": "failed"}


async def test_nobody_gives_way_for_a_model_whose_file_was_replaced(
    tiny_path: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(tiny_path, tmp_path / "b.gguf"))
    async with serving("--swap-residency --swap-host-mib 0", a=tiny_path, b=copy) as server:
        copy.unlink()
        shutil.copy(tiny_llama(tmp_path / "other", num_layers=1), copy)
        answer = await ask(server, "b")
        assert answer.status_code == 503
        assert "has changed since the server started" in answer.json()["error"]["message"]
        status = await server.status()
        assert status["models"][0]["last_evict_ms"] is None
        assert await residencies(server) == {"a": "resident", "b": "failed"}


async def test_a29_a_shut_down_in_a_drain_lets_the_stream_end(tiny_path: Path) -> None:
    async with serving("--swap-residency", a=tiny_path, b=tiny_path) as server:
        workers = server.pids()
        stream = await caught(server, 400)
        waiting = asyncio.create_task(ask(server, "b"))
        await server.until(lambda s: s["models"][0]["draining"])
        server.process.send_signal(signal.SIGTERM)
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        server.resume("a")
        assert finish_of(await stream.end()) == "length"
        assert await asyncio.to_thread(server.process.wait, 60) == 0
        await eventually(lambda: not any(is_running(pid) for pid in workers.values()))


async def test_a30_a_shut_down_in_a_reinstatement_leaves_nothing_behind(tiny_path: Path) -> None:
    async with serving("--swap-residency", a=tiny_path, b=tiny_path) as server:
        workers = server.pids()
        os.kill(workers["b"], signal.SIGSTOP)
        waiting = asyncio.create_task(ask(server, "b"))
        await server.until(lambda s: s["models"][1]["residency_state"] == "loading")
        server.process.send_signal(signal.SIGTERM)
        assert (await waiting).status_code == 503
        assert await asyncio.to_thread(server.process.wait, 60) == 0
        await eventually(lambda: not any(is_running(pid) for pid in workers.values()))


async def test_models_load_on_demand_as_far_as_the_budget_goes(tiny_path: Path) -> None:
    flags = "--load-on-demand --device-memory cpu:0=100MiB --preload a --idle-unload-s 30"
    async with serving(flags, a=tiny_path, b=tiny_path) as server:
        assert await residencies(server) == {"a": "resident", "b": "evicted"}
        assert (await server.status())["models"][1]["residency_state"] == "unloaded"
        answers = await asyncio.gather(ask(server, "b"), ask(server, "b"))
        assert [answer.json()["model"] for answer in answers] == ["b", "b"]
        assert await residencies(server) == {"a": "evicted", "b": "resident"}
        assert (await ask(server, "a")).json()["model"] == "a"
        status = await server.status()
        (books,) = status["devices"]
        assert books["total_bytes"] == 100 * 2**20
        assert books["pending_bytes"] == 0
        assert 0 < books["ours_bytes"] <= books["total_bytes"]
        verdicts = [decision["verdict"] for decision in status["decisions"]]
        assert verdicts.count("ready") == 3
        metrics = (await server.client.get("/metrics")).text
        assert 'luce_pool_bytes{device="cpu:0",kind="total"} 1.048576e+08' in metrics
        assert 'luce_model_loads_total{model="b"} 1.0' in metrics


async def test_a_pinned_model_keeps_others_out_with_numbers(tiny_path: Path) -> None:
    flags = "--load-on-demand --device-memory cpu:0=100MiB --preload a --pin a"
    async with serving(flags, a=tiny_path, b=tiny_path) as server:
        refused = await ask(server, "b")
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (503, "insufficient_device_memory")
        assert refused.headers["retry-after"] == "5"
        assert "pinned" in error["message"]
        assert (await ask(server, "a")).json()["model"] == "a"


async def test_a_file_that_was_replaced_before_its_load_is_not_served(
    tiny_path: Path, tmp_path: Path
) -> None:
    """Its text and its plan are those of the file there was at the start."""
    copy = Path(shutil.copy(tiny_path, tmp_path / "b.gguf"))
    async with serving("--load-on-demand", a=tiny_path, b=copy) as server:
        copy.unlink()
        shutil.copy(tiny_llama(tmp_path / "other", num_layers=1), copy)
        answer = await ask(server, "b")
        assert answer.status_code == 503
        assert "has changed since the server started" in answer.json()["error"]["message"]
        assert (await ask(server, "a")).json()["model"] == "a"
        assert await residencies(server) == {"a": "resident", "b": "failed"}
