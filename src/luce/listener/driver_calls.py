"""Calls of drivers, which may be slow, fail, or never return."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class DriverCalls:
    """Makes them in threads that hold up neither each other nor the end of the process.

    A thread pool would not do: calls that hang would fill it, and it is waited for at the end.
    """

    def __init__(self) -> None:
        self._under_way: set[str] = set()

    async def call(self, device: str, work: Callable[[], T], limit_s: float) -> T | None:
        """What `work` returns; None if it fails or takes too long, or an earlier call hangs still.

        Args:
            device: which; calls about it are made one after the other.
            work: the call.
            limit_s: how long it is waited for.
        """
        if device in self._under_way:
            return None
        self._under_way.add(device)
        answer: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        thread = threading.Thread(
            target=self._run, args=(device, work, answer), name=f"driver-{device}", daemon=True
        )
        thread.start()
        done, _ = await asyncio.wait([answer], timeout=limit_s)
        return answer.result() if done else None

    def _run(self, device: str, work: Callable[[], T], answer: asyncio.Future[T | None]) -> None:
        result: T | None = None
        try:
            result = work()
        except Exception as error:
            # The border to a driver: what it cannot say is unknown, and the server goes on.
            log.warning("driver failed", extra={"device": device, "error": str(error)})
        # The loop may have ended while the driver took its time.
        with contextlib.suppress(RuntimeError):
            answer.get_loop().call_soon_threadsafe(self._finish, device, answer, result)

    def _finish(self, device: str, answer: asyncio.Future[T | None], result: T | None) -> None:
        self._under_way.discard(device)
        if not answer.done():
            answer.set_result(result)
