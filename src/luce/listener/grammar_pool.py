"""GrammarPool: where grammars are made and tried, apart from where prompts are prepared.

A client's schema may take a second. Prompts, token counts and other clients' small schemas must
not wait for it, so grammars have threads of their own: one for large ones, one for all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from luce.errors import Overloaded

MAX_LINE = 64
"""Requests of one kind that are at work or wait for it."""
LARGE_CHARS = 16_384
"""Schemas and grammars of more characters wait for each other only."""

T = TypeVar("T")


class _Lane:
    """One thread and a line before it."""

    def __init__(self, name: str) -> None:
        self.executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.num_waiting = 0


class GrammarPool:
    """The threads of one server. Event loop only."""

    def __init__(self) -> None:
        self._quick = _Lane("grammar")
        self._slow = _Lane("large-grammar")

    async def run(self, work: Callable[[], T], num_chars: int) -> T:
        """Work on a grammar in its turn; cancelled before that, it is not begun.

        Args:
            work: makes it.
            num_chars: size of what the client sent for it.

        Raises:
            Overloaded: the line is full.
        """
        lane = self._slow if num_chars > LARGE_CHARS else self._quick
        if lane.num_waiting >= MAX_LINE:
            raise Overloaded(
                f"{MAX_LINE} schemas or grammars are waiting to be compiled; try again later."
            )
        lane.num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(lane.executor, work)
        finally:
            lane.num_waiting -= 1

    def close(self) -> None:
        """Begin nothing more; what is at work ends by itself."""
        for lane in (self._quick, self._slow):
            lane.executor.shutdown(wait=False, cancel_futures=True)
