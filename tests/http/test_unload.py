"""`POST /models/unload` over HTTP, with scripted workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from demand_harness import DemandHarness
from http_harness import Harness, eventually
from swap_harness import SwapHarness

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

UNLOAD = "/models/unload"


async def unload(server: Any, name: str) -> Any:
    return await server.client.post(UNLOAD, json={"model": name})


async def test_b36_a_resident_finishes_what_runs_and_leaves() -> None:
    async with DemandHarness(FakeScript(hold_after=2), FakeScript()) as server:
        first = server.asking("big", "held text")
        await server.running(1)
        answer = await unload(server, "big")
        assert (answer.status_code, answer.json()) == (200, {"success": True})
        assert server.state("big") == "draining"
        server.worker("big").release()
        assert (await first).json()["choices"][0]["message"]["content"] == "held text"
        await server.reaches("big", "unloaded")
        assert (await server.status_of("big"))["last_swap_reason"] == "unloaded"
        assert server.ledger.held_by("big") == {}
        server.worker("big").script = FakeScript()
        assert (await server.named("big")).status_code == 200
        assert server.launcher.num_launched["big"] == 2


async def test_b36_a_load_is_cancelled_and_who_waits_gets_503(tmp_path: Path) -> None:
    script = FakeScript(load_until_file=str(tmp_path / "never"))
    async with DemandHarness(script, FakeScript()) as server:
        waiting = server.asking("big")
        await server.reaches("big", "loading")
        await eventually(lambda: server.launcher.num_launched["big"] == 1)
        assert (await unload(server, "big")).status_code == 200
        refused = await waiting
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (503, "model_unavailable")
        assert refused.headers["retry-after"] == "1"
        assert "was unloaded while this request waited" in error["message"]
        assert server.ledger.state("g0").pending_bytes == 0
        assert (await server.named("small")).status_code == 200


async def test_models_that_take_turns_can_be_unloaded_too() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        assert (await unload(server, "big")).status_code == 200
        await server.reaches("big", "unloaded")
        assert (await server.named("small")).json()["model"] == "small"
        assert (await server.named("big")).json()["model"] == "big"


async def test_what_is_refused() -> None:
    async with DemandHarness(FakeScript(), FakeScript()) as server:
        answer = await unload(server, "none")
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
        answer = await server.client.post(UNLOAD, json={})
        assert answer.status_code == 400
    async with Harness(FakeScript()) as alone:
        answer = await unload(alone, "big")
        assert answer.status_code == 400
        assert "--load-on-demand" in answer.json()["error"]["message"]
