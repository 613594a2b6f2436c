"""Looking at devices in threads, and waiting for memory to come back."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from luce.listener import device_watch
from luce.listener.device_watch import DeviceWatch
from luce.placement.devices import MemorySample
from luce.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


class ListedProbe:
    """Answers from a list; the last answer stays."""

    def __init__(self, *free: int | None) -> None:
        self.free = list(free)
        self.threads: set[int] = set()

    def sample(self, device_uuid: str) -> MemorySample | None:
        self.threads.add(threading.get_ident())
        free = self.free.pop(0) if len(self.free) > 1 else self.free[0]
        return None if free is None else MemorySample(free, 0)


async def test_answers_come_from_a_thread() -> None:
    probe = ListedProbe(70)
    watch = DeviceWatch({"m": ("g",)}, probe)
    assert await watch.free("m") == {"g": 70}
    assert threading.get_ident() not in probe.threads
    assert watch.samples.is_fresh("g", 1.0)


async def test_without_a_probe_nobody_knows() -> None:
    watch = DeviceWatch({"m": ("g",)})
    assert await watch.free("m") == {"g": None}
    await watch.comes_back("m", {"g": None}, 0, 5.0)


async def test_a_driver_that_hangs_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "PROBE_TIMEOUT_S", 0.05)

    class Hanging(ListedProbe):
        def sample(self, device_uuid: str) -> MemorySample | None:
            time.sleep(0.3)
            return MemorySample(1, 0)

    watch = DeviceWatch({"m": ("g",)}, Hanging())
    began = time.monotonic()
    assert await watch.free("m") == {"g": None}
    assert time.monotonic() - began < 0.25


async def test_a7_memory_that_comes_back_late_is_waited_for() -> None:
    clock = FakeClock()
    watch = DeviceWatch({"m": ("g",)}, ListedProbe(10, 60, 100), clock=clock)
    watch.expect("m", 90)
    waiting = asyncio.create_task(watch.comes_back("m", {"g": 10}, 0, 5.0))
    while not waiting.done():
        await asyncio.sleep(0.01)
        await clock.advance(0.05)
    assert watch.samples.free("g") == 100


async def test_what_was_kept_is_not_waited_for() -> None:
    watch = DeviceWatch({"m": ("g",)}, ListedProbe(19))
    watch.expect("m", 90)
    await asyncio.wait_for(watch.comes_back("m", {"g": 10}, 80, 60.0), 2.0)


async def test_b21_memory_that_does_not_come_back_ends_the_wait() -> None:
    clock = FakeClock()
    watch = DeviceWatch({"m": ("g",)}, ListedProbe(10), clock=clock)
    watch.expect("m", 90)
    waiting = asyncio.create_task(watch.comes_back("m", {"g": 10}, 0, 5.0))
    began_ns = clock.now_ns()
    while not waiting.done():
        await asyncio.sleep(0.005)
        await clock.advance(0.05)
    assert clock.now_ns() - began_ns <= 1.3e9  # A fifth of the patience without a change.
