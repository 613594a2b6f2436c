"""Looking at devices in threads, and waiting for memory to come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping

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


async def test_a_driver_that_hangs_is_unknown_and_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_watch, "PROBE_TIMEOUT_S", 0.05)
    goes_on, asked = threading.Event(), []

    class Hanging(ListedProbe):
        def sample(self, device_uuid: str) -> MemorySample | None:
            asked.append(device_uuid)
            if device_uuid == "hangs":
                goes_on.wait(60)
            return MemorySample(1, 0)

    watch = DeviceWatch({"m": ("hangs",), "n": ("g",)}, Hanging())
    try:
        for _ in range(3):
            assert await watch.free("m") == {"hangs": None}
        while not asked:
            await asyncio.sleep(0.005)
        monkeypatch.setattr(device_watch, "PROBE_TIMEOUT_S", 60)
        assert await watch.free("n") == {"g": 1}
        assert asked == ["hangs", "g"]  # Nobody piles up behind it.
    finally:
        goes_on.set()
    while (await watch.free("m"))["hangs"] is None:
        await asyncio.sleep(0.005)  # Its late answer is on its way.


async def test_a_driver_that_fails_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ListedProbe):
        def sample(self, device_uuid: str) -> MemorySample | None:
            raise OSError("the GPU has fallen off the bus")

    assert await DeviceWatch({"m": ("g",)}, Broken()).free("m") == {"g": None}
    (record,) = caplog.records
    assert vars(record)["error"] == "the GPU has fallen off the bus"


def test_a_driver_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop ends while the call is under way; its answer goes nowhere."""
    monkeypatch.setattr(device_watch, "PROBE_TIMEOUT_S", 0.01)
    goes_on, ended = threading.Event(), threading.Event()

    class Hanging(ListedProbe):
        def sample(self, device_uuid: str) -> MemorySample | None:
            goes_on.wait(60)
            ended.set()
            return None

    async def look() -> None:
        await DeviceWatch({"m": ("g",)}, Hanging()).look(("g",))

    asyncio.run(look())
    goes_on.set()
    assert ended.wait(60)


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
    await asyncio.wait_for(watch.comes_back("m", {"g": 10}, 80, 60.0), 60)


async def test_b21_memory_that_does_not_come_back_ends_the_wait() -> None:
    clock = FakeClock()
    watch = DeviceWatch({"m": ("g",)}, ListedProbe(10), clock=clock)
    watch.expect("m", 90)
    waiting = asyncio.create_task(watch.comes_back("m", {"g": 10}, 0, 5.0))
    began_ns = clock.now_ns()
    while not waiting.done():
        await asyncio.sleep(0.005)
        if clock.num_sleepers:  # A thread that looks takes none of its time.
            await clock.advance(0.05)
    assert clock.now_ns() - began_ns <= 1.3e9  # A fifth of the patience without a change.


class Drivers:
    """Say what processes hold, one of a stranger among them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, set[int]]] = []

    def process_bytes(self, device_uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        self.asked.append((device_uuid, set(pids)))
        return {7: 30, 99: 5}


async def test_what_our_processes_hold_comes_with_what_is_free() -> None:
    watch = DeviceWatch({"a": ("g",), "b": ("h",)}, ListedProbe(50))
    drivers, pids = Drivers(), {"a": 7, "b": 8}
    watch.attribute(drivers, lambda: pids, ["g"])
    await watch.look(("g", "h"))
    assert drivers.asked == [("g", {7, 8})]  # Of `h` it would mean nothing.
    on_g, on_h = watch.samples.latest("g"), watch.samples.latest("h")
    assert on_g is not None
    assert on_h is not None
    assert (on_g.shares, on_h.shares) == ({"a": 30}, {})
    del pids["a"]
    await watch.look(("g",))
    gone = watch.samples.latest("g")
    assert gone is not None
    assert gone.shares == {}


async def test_memory_of_the_host_is_not_waited_for() -> None:
    """What others take there meanwhile would be taken for memory that has not come back."""
    clock, probe = FakeClock(), ListedProbe(70)
    watch = DeviceWatch({"m": ("cpu:0",)}, probe, clock=clock, at_once=["cpu:0"])
    watch.expect("m", 50)
    began_ns = clock.now_ns()
    await watch.comes_back("m", await watch.free("m"), 0, 5.0)
    assert clock.now_ns() == began_ns
