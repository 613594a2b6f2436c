"""`/status/json`: true while requests move through it, quick whatever the workers do."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest
from http_harness import Harness, Rules, eventually

from luce.protocol.messages import WorkerStats
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


async def status(server: Harness) -> Any:
    response = await server.client.get("/status/json")
    assert response.status_code == 200
    return response.json()


async def until(server: Harness, **expected: Any) -> Any:
    """Wait until the status says this; gives the whole of it."""
    async with asyncio.timeout(60):
        while True:
            body = await status(server)
            if all(body[key] == value for key, value in expected.items()):
                return body
            await asyncio.sleep(0.01)


async def test_how_a_mixture_spreads_its_tokens() -> None:
    tokens = [[6, 2, 0, 0], [1, 1, 1, 1]]
    async with Harness(FakeScript(), FakeScript()) as server:
        server.models[1].handle.stats = WorkerStats(
            num_experts=4, expert_loads=struct.pack("<8q", *tokens[0], *tokens[1])
        )
        summary = (await status(server))["models"]
        full = (await server.client.get("/status/json?experts=tokens")).json()["models"]
    assert summary[0]["experts"] is None
    assert full[0]["experts"] is None
    expected = {
        "num_experts": 4,
        "routed_tokens": 12,
        "layers": [{"imbalance": 3.0, "unused": 2}, {"imbalance": 1.0, "unused": 0}],
    }
    assert summary[1]["experts"] == expected
    assert full[1]["experts"] == {**expected, "tokens": tokens}


async def test_one_idle_model() -> None:
    async with Harness(FakeScript(max_concurrency=3, max_ctx=512)) as server:
        body = await status(server)
    assert body["phase"] == "idle"
    assert body["total_requests"] == body["active_requests"] == body["suspended_requests"] == 0
    assert body["perf_history"] == []
    assert body["current"] is None
    assert "routing" not in body
    assert (body["waiting"], body["queue_limit"]) == (0, 8)
    (model,) = body["models"]
    assert model.pop("props")["model_alias"] == "big"
    assert model == {
        "id": "big",
        "capacity": 3,
        "in_flight": 0,
        "execution_mode": "batched",
        "target_device": "cpu:0",
        "draft_device": None,
        "max_context": 512,
        "state": "ready",
        "restarts": 0,
        "experts": None,
        "status": {
            "phase": "idle",
            "active_requests": 0,
            "suspended_requests": 0,
            "fault": None,
        },
    }


async def test_a_request_is_prefill_until_its_first_token_then_decode_then_history() -> None:
    script = FakeScript(token_delay_s=0.12, hold_after=0, hold_again_after=1, cached_tokens=2)
    async with Harness(script) as server:
        ask = asyncio.create_task(server.ask("hello"))
        await until(server, phase="prefill", active_requests=1)
        await server.running(1)
        await asyncio.sleep(0.3)
        server.models[0].worker.release()
        body = await until(server, phase="decode", active_requests=1, total_requests=1)
        assert body["models"][0]["in_flight"] == 1
        assert body["perf_history"] == []
        server.models[0].worker.release()
        assert (await ask).status_code == 200
        body = await until(server, phase="idle", active_requests=0, total_requests=1)
        await server.idle()
        (entry,) = (await status(server))["perf_history"]
    rates = entry.pop("prefill_tok_s"), entry.pop("decode_tok_s")
    times = entry.pop("queue_ms"), entry.pop("ttft_ms")
    assert entry == {"model": "big", "prompt_tokens": 5, "cached": 2, "completion_tokens": 6}
    assert 0 < rates[0] < 3 / 0.29
    assert 0 < rates[1] < 5 / 0.29
    assert 0 < times[0] < times[1]
    assert times[1] > 290


async def test_two_models_in_different_phases_are_mixed() -> None:
    early = FakeScript(hold_after=0, max_concurrency=1)
    late = FakeScript(hold_after=1, max_concurrency=1)
    async with Harness(early, late, rules=Rules(queue_limit=4)) as server:
        asks = [asyncio.create_task(server.ask(text)) for text in ("one", "two", "three")]
        body = await until(server, phase="mixed", active_requests=2, waiting=1, total_requests=3)
        assert body["routing"] == "primary-first"
        assert body["queue_limit"] == 4
        assert [model["id"] for model in body["models"]] == ["big", "small"]
        assert [model["in_flight"] for model in body["models"]] == [1, 1]
        phases = [model["status"]["phase"] for model in body["models"]]
        assert phases == ["prefill", "decode"]
        for model in server.models:
            model.worker.release()
        await until(server, waiting=0)
        for model in server.models:
            model.worker.release()
        await asyncio.gather(*asks)
        await server.idle()
        body = await until(server, phase="idle", waiting=0)
        assert [model["in_flight"] for model in body["models"]] == [0, 0]


async def test_one_model_with_both_is_mixed_too() -> None:
    async with Harness(FakeScript(hold_after=0, hold_again_after=1)) as server:
        first = asyncio.create_task(server.ask("one"))
        await server.running(1)
        server.models[0].worker.release()
        await until(server, phase="decode", active_requests=1)
        second = asyncio.create_task(server.ask("two"))
        await until(server, phase="mixed", active_requests=2)
        await server.running(2)
        server.models[0].worker.release()
        await until(server, phase="decode", active_requests=1)
        server.models[0].worker.release()
        await asyncio.gather(first, second)


async def test_failed_and_refused_requests_leave_no_performance() -> None:
    async with Harness(FakeScript(fail_error="InternalError", reply=[97])) as server:
        assert (await server.ask("x")).status_code == 500
        assert (await server.ask("x", temperature=-1)).status_code == 400
        await server.idle()
        body = await status(server)
        assert body["perf_history"] == []
        assert body["total_requests"] == 1


async def test_suspended_requests_are_what_the_worker_says_while_it_lives() -> None:
    async with Harness() as server:
        (model,) = server.models
        model.handle.stats = WorkerStats(preempted=2, total_blocks=10)
        assert (await status(server))["suspended_requests"] == 2
        model.worker.crash()
        await eventually(lambda: model.handle.state.value == "lost")
        assert (await status(server))["suspended_requests"] == 0


async def test_a_dead_model_and_its_return() -> None:
    async with Harness(FakeScript(), FakeScript()) as server:
        model = server.models[0]
        model.worker.crash()
        await eventually(lambda: model.handle.state.value == "lost")
        dead, alive = (await status(server))["models"]
        assert (dead["state"], alive["state"]) == ("restarting", "ready")
        assert "ended" in dead["status"]["fault"]
        assert dead["props"]["daemon"] == {"alive": False}
        await server.connect(model)
        await server.ready()
        back = (await status(server))["models"][0]
        assert (back["state"], back["restarts"]) == ("ready", 1)
        assert back["status"]["fault"] is None


async def test_it_answers_while_models_load(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    async with Harness(FakeScript(load_until_file=str(loaded)), wait_ready=False) as server:
        body = await status(server)
        (model,) = body["models"]
        assert (body["phase"], model["state"], model["capacity"]) == ("idle", "loading", 0)
        assert model["max_context"] is None
        loaded.touch()
        await server.ready()


async def test_it_is_quick_while_a_worker_hangs_and_the_queue_is_full() -> None:
    hung = FakeScript(stall_reading=True, max_concurrency=2)
    async with Harness(hung, rules=Rules(queue_limit=2)) as server:
        asks = [asyncio.create_task(server.ask("x" * 100)) for _ in range(4)]
        await until(server, active_requests=2, waiting=2, phase="prefill")
        for _ in range(20):
            await status(server)
        assert not any(ask.done() for ask in asks)
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        server.models[0].worker.crash()
        await until(server, active_requests=0, waiting=0)
