from __future__ import annotations

import asyncio

import pytest

from luce.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


async def test_sleepers_wake_in_order_each_at_its_moment():
    clock = FakeClock(start_ns=0)
    woke: list[tuple[str, int]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woke.append((name, clock.now_ns()))

    tasks = [asyncio.create_task(sleeper(n, s)) for n, s in (("b", 2), ("a", 1), ("c", 3))]
    await clock.wait_for_sleepers(3)
    await clock.advance(0.999)
    assert woke == []
    await clock.advance(1.001)
    assert woke == [("a", 10**9), ("b", 2 * 10**9)]
    assert clock.num_sleepers == 1
    await clock.advance(10)
    await asyncio.gather(*tasks)
    assert clock.now_ns() == 12 * 10**9


async def test_a_sleeper_that_sleeps_again_is_part_of_the_same_advance():
    clock = FakeClock(start_ns=0)
    ticks: list[int] = []

    async def ticker() -> None:
        for _ in range(3):
            await clock.sleep(1)
            ticks.append(clock.now_ns())

    task = asyncio.create_task(ticker())
    await clock.wait_for_sleepers(1)
    await clock.advance(3)
    assert ticks == [10**9, 2 * 10**9, 3 * 10**9]
    await task


async def test_a_cancelled_sleeper_is_forgotten():
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(5))
    await clock.wait_for_sleepers(1)
    task.cancel()
    await clock.settle()
    assert clock.num_sleepers == 0


async def test_no_time_is_no_sleep():
    await asyncio.wait_for(FakeClock().sleep(0), 60)


async def test_waiting_for_sleepers_gives_up():
    with pytest.raises(TimeoutError):
        await FakeClock().wait_for_sleepers(1, timeout_s=0.01)
