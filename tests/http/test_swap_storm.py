"""Requests for three models of one device, with clients that leave and workers that die: every
one ends, once, and nothing is left behind. `LUCE_STORM_SEED` chooses another storm."""

from __future__ import annotations

import asyncio
import os
import random
import threading

import pytest
from demand_harness import DemandHarness, DemandRules
from http_harness import eventually
from swap_harness import NAMES, SwapHarness, SwapRules

from luce.placement.effects import CoordinatorOptions
from luce.placement.residency import Cooldown
from luce.placement.turns import TurnOptions
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

SEED = int(os.environ.get("LUCE_STORM_SEED", "3"))
NUM_REQUESTS = 150
COOLDOWN = Cooldown(0.1, 0.1)


def scripts() -> list[FakeScript]:
    return [
        FakeScript(token_delay_s=0.001, max_concurrency=2, evict_s=0.003, reinstate_s=0.005)
        for _ in NAMES
    ]


async def blow(server: SwapHarness, seed: int) -> dict[str, int]:
    """Everything at once; how many requests ended in which way."""
    rng = random.Random(seed)
    ends: dict[str, int] = {}

    async def ask(name: str | None) -> None:
        answer = await server.named(name, "some words")
        if answer.status_code == 200:
            assert name in (None, answer.json()["model"])
            end = "served"
        else:
            end = answer.json()["error"]["code"]
        ends[end] = ends.get(end, 0) + 1

    asks: list[asyncio.Task[None]] = []
    dying: list[threading.Thread | None] = []
    for _ in range(NUM_REQUESTS):
        asks.append(asyncio.create_task(ask(rng.choice([*NAMES, *NAMES, None]))))
        await asyncio.sleep(rng.choice([0, 0.001, 0.01]))
        if rng.random() < 0.1:
            rng.choice(asks).cancel()
        victim = rng.choice(NAMES)
        if rng.random() < 0.03 and server.launcher.num_launched[victim]:
            dying.append(server.worker(victim).crash())
    results = await asyncio.wait_for(asyncio.gather(*asks, return_exceptions=True), 60)
    broken = [r for r in results if isinstance(r, Exception)]
    assert broken == []
    for thread in filter(None, dying):
        await asyncio.to_thread(thread.join)
    return ends


ALLOWED = {"served", "model_unavailable", "worker_lost", "overloaded"}


async def settles(server: SwapHarness) -> None:
    """Nothing is under way, and every model can be had."""
    await eventually(lambda: not server.coordinator.arriving)
    await eventually(lambda: server.router.num_open == 0 and server.in_flight() == 0)
    assert server.router.num_waiting == 0

    def none_fails() -> bool:
        return all(server.state(name) != "cooldown" for name in NAMES)

    await eventually(none_fails)
    for name in NAMES:
        assert (await server.named(name)).json().get("model") == name
    await eventually(lambda: server.in_flight() == 0)


async def test_a_storm_over_models_that_take_turns() -> None:
    rules = SwapRules(
        queue_limit=1000,
        turns=TurnOptions(kept_weights=("small",), host_bytes=150, linger_s=0.002),
        coordinator=CoordinatorOptions(cooldown=COOLDOWN, memory_patience_s=0.1),
    )
    async with SwapHarness(*scripts(), rules=rules) as server:
        ends = await blow(server, SEED)
        assert set(ends) <= ALLOWED, ends
        assert ends["served"] > NUM_REQUESTS // 3, ends
        await settles(server)
        assert sum(server.state(name) == "ready" for name in NAMES) == 1


async def test_a_storm_over_models_that_load_on_demand() -> None:
    options = CoordinatorOptions(
        restores=False, abandons=True, cooldown=COOLDOWN, memory_patience_s=0.1
    )
    rules = DemandRules(queue_limit=1000, coordinator=options, plans={"third": 40})
    async with DemandHarness(*scripts(), rules=rules) as server:
        ends = await blow(server, SEED)
        assert set(ends) <= ALLOWED, ends
        assert ends["served"] > NUM_REQUESTS // 3, ends
        await settles(server)
        server.ledger.check()
        assert server.ledger.state("g0").pending_bytes == 0
