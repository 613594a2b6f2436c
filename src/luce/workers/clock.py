"""Clock: the time the listener's side of a worker lives by, replaceable in tests."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time and sleeping on the event loop."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""

    async def sleep(self, seconds: float) -> None:
        """Wait for so long; cancellable."""


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
