"""FakeClock: time that passes only when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class FakeClock:
    """A `luce.workers.clock.Clock` for one event loop."""

    def __init__(self, start_ns: int = 10**9) -> None:
        self._now_ns = start_ns
        self._sleepers: list[tuple[int, int, asyncio.Event]] = []
        self._order = itertools.count()
        self._slept = asyncio.Event()

    @property
    def num_sleepers(self) -> int:
        """Tasks that sleep now."""
        return len(self._sleepers)

    def now_ns(self) -> int:
        return self._now_ns

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        entry = (self._now_ns + round(seconds * 1e9), next(self._order), asyncio.Event())
        heapq.heappush(self._sleepers, entry)
        self._slept.set()
        try:
            await entry[2].wait()
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)
                heapq.heapify(self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Let time pass; sleepers wake in order, each at its own moment.

        Whoever is about to sleep does so before it.
        """
        await self.settle()
        target = self._now_ns + round(seconds * 1e9)
        while self._sleepers and self._sleepers[0][0] <= target:
            self._now_ns, _, event = heapq.heappop(self._sleepers)
            event.set()
            await self.settle()
        self._now_ns = target
        await self.settle()

    async def settle(self) -> None:
        """Let every task run until it waits for something else than this clock."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def wait_for_sleepers(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait, in real time, until so many tasks sleep.

        Raises:
            TimeoutError: they did not.
        """
        await self.settle()  # Those that were cancelled sleep no more.
        async with asyncio.timeout(timeout_s):
            while len(self._sleepers) < count:
                self._slept.clear()
                await self._slept.wait()
