"""Models that load on demand, over HTTP; names of tests are rows of the specification."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from demand_harness import DemandHarness, DemandRules
from http_harness import eventually

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


async def test_a_model_loads_when_it_is_named_and_never_before() -> None:
    async with DemandHarness(FakeScript(), FakeScript()) as server:
        health = await server.client.get("/health")
        assert health.status_code == 200
        nobody = await server.named(None)
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (503, "model_unavailable")
        assert server.launcher.num_launched == {"big": 0, "small": 0}
        answer = await server.named("small", "hello")
        assert answer.json()["model"] == "small"
        assert server.launcher.num_launched == {"big": 0, "small": 1}
        assert (await server.named(None)).json()["model"] == "small"
        await server.idle()


async def test_b19_b20_many_requests_for_models_that_do_not_fit_together() -> None:
    scripts = [FakeScript() for _ in range(3)]
    async with DemandHarness(*scripts, rules=DemandRules(queue_limit=64)) as server:
        names = [("big", "small", "third")[index % 3] for index in range(30)]
        answers = await asyncio.gather(*(server.named(name) for name in names))
        assert [answer.status_code for answer in answers] == [200] * 30
        assert [answer.json()["model"] for answer in answers] == names
        server.ledger.check()
        assert server.ledger.state("g0").pending_bytes == 0
        assert sum(server.state(name) == "ready" for name in set(names)) == 1
        assert server.swaps() <= 15
        await server.idle()


async def test_b2_a_running_answer_is_never_cut_for_another_model() -> None:
    async with DemandHarness(FakeScript(hold_after=2), FakeScript()) as server:
        first = server.asking("big", "held text")
        await server.running(1)
        second = server.asking("small")
        await server.reaches("big", "draining")
        server.worker("big").release()
        assert (await first).json()["choices"][0]["message"]["content"] == "held text"
        assert (await second).json()["model"] == "small"


async def test_b8_no_room_is_503_with_numbers() -> None:
    async with DemandHarness(FakeScript(), FakeScript()) as server:
        server.probe.free = 50
        answer = await server.named("big")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "insufficient_device_memory")
        assert answer.headers["retry-after"] == "5"
        for part in ("60 B needed", "50 B available", "50 B of other programs"):
            assert part in error["message"]
        assert server.launcher.num_launched["big"] == 0
        server.probe.free = 100
        # An answer of the driver counts for a moment.
        while (answer := await server.named("big")).status_code == 503:
            await asyncio.sleep(0.02)
        assert answer.status_code == 200


async def test_b9_larger_than_the_device_is_400() -> None:
    rules = DemandRules(plans={"small": 120})
    async with DemandHarness(FakeScript(), FakeScript(), rules=rules) as server:
        assert (await server.named("big")).status_code == 200
        answer = await server.named("small")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_exceeds_device")
        assert server.state("big") == "ready"


async def test_b12_a_load_that_fails_is_told_and_cooled_down() -> None:
    broken = FakeScript(load_error="ModelFileError", load_message="the file is cut off")
    async with DemandHarness(broken, FakeScript()) as server:
        answer = await server.named("big")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "model_unavailable")
        assert "the file is cut off" in error["message"]
        assert (await server.named("big")).status_code == 503
        assert server.launcher.num_launched["big"] == 1
        assert (await server.named("small")).json()["model"] == "small"
        server.worker("big").script = FakeScript()
        await server.cooled_down("big")
        assert (await server.named("big")).json()["model"] == "big"


async def test_b37_b38_clients_that_leave(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    async with DemandHarness(FakeScript(load_until_file=str(loaded)), FakeScript()) as server:
        ask = server.asking("big")
        await server.reaches("big", "loading")
        ask.cancel()
        await eventually(lambda: server.router.num_open == 0)
        loaded.touch()
        await server.reaches("big", "ready")  # The load goes on: others may want it.
        server.worker("big").script.hold_after = 1
        held = server.asking("big")
        await server.running(1)
        other = server.asking("small")
        await server.reaches("big", "draining")
        other.cancel()
        await server.reaches("big", "ready")  # Nobody needs its memory any more.
        server.worker("big").release()
        assert (await held).status_code == 200
        assert server.launcher.num_launched["small"] == 0


async def test_b47_the_status_answers_while_a_model_loads(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    async with DemandHarness(FakeScript(load_until_file=str(loaded)), FakeScript()) as server:
        ask = server.asking("big")
        await server.reaches("big", "loading")
        status = await server.status()
        assert server.state("big") == "loading"
        loaded.touch()
        assert (await ask).status_code == 200
        assert status["devices"][0]["device"] == "g0"
        decision = status["decisions"][0]
        assert decision["verdict"] == "load"
        # Unix time, whatever the clock inside.
        assert abs(decision["at_s"] - datetime.now(tz=UTC).timestamp()) < 600
        assert (status["admission_policy"], status["models_max"]) == ("gate", 0)
        props = (await server.client.get("/props")).json()
        assert props["models"][0]["charge"] == {}
        assert props["routing"] == "by-name"


async def test_too_long_for_a_model_that_is_not_loaded_is_400_and_loads_nothing() -> None:
    scripts = FakeScript(max_ctx=16, kv_pool_tokens=64), FakeScript()
    async with DemandHarness(*scripts) as server:
        answer = await server.named("big", "far more text than sixteen tokens")
        assert answer.status_code == 400
        assert server.launcher.num_launched["big"] == 0


async def test_a_sleeper_comes_back_without_a_new_process() -> None:
    async with DemandHarness(FakeScript(), FakeScript()) as server:
        for name in ("big", "small", "big"):
            assert (await server.named(name)).json()["model"] == name
        assert server.launcher.num_launched == {"big": 1, "small": 1}
        assert server.transitions("big") == [("evict", "cold"), ("reinstate", None)]
        metrics = (await server.client.get("/metrics")).text
        assert 'luce_model_loads_total{model="big"} 2.0' in metrics
        assert 'luce_pool_bytes{device="g0",kind="ours"} 60.0' in metrics
        assert 'luce_resident{device="cpu:0",model="small",state="evicted"} 1.0' in metrics
        named = 'luce_route_decisions_total{from="big",reason="named",to="small"} 1.0'
        assert named in metrics
