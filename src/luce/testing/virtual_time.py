"""VirtualTimeLoop: an event loop whose clock jumps to the next timer instead of waiting for it.

For tests of what happens when: they take no time, and how busy the machine is changes nothing.
Only for tests without threads, whose work would take no time either.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for sockets only where no timer is due some day."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None and timeout > 0:
            self.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its time stands still while anything can run."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since it was made."""
        return self._jumping.now_s

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which nothing could run, as on a machine that was busy."""
        self._jumping.now_s += seconds


VIRTUAL_TIME: Any = ("asyncio", {"loop_factory": VirtualTimeLoop})
"""For a test's `anyio_backend`."""
