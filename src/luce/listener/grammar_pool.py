"""GrammarPool: where grammars are made and tried, apart from where prompts are prepared.

A client's schema may take a second. Prompts, token counts and other clients' small schemas must
not wait for it, so grammars have threads of their own: one for large ones, one for all others.
Before each of them clients take turns, and a full line is shortened where it is longest: whoever
sends many waits for, and is refused for, their own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
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
    """One thread and a line of each client before it."""

    def __init__(self, name: str) -> None:
        self.executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._is_taken = False
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def turn(self, client: str) -> None:
        """Wait for the thread; then it must be given back by `pass_on`.

        Raises:
            Overloaded: the line is full, or others with fewer requests needed the place.
        """
        if not self._is_taken:
            self._is_taken = True
            return
        if 1 + sum(map(len, self._lines.values())) >= MAX_LINE:
            self._make_room(client)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(client, turn)
            elif turn.exception() is None:
                self.pass_on()  # It had come in the same moment.
            raise

    def pass_on(self) -> None:
        """Let the next client have the thread; the one whose turn it was goes to the end."""
        while self._lines:
            client, line = self._lines.popitem(last=False)
            turn = line.popleft()
            if line:
                self._lines[client] = line
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False

    def _make_room(self, client: str) -> None:
        """Turn away the latest of whoever has most, unless the newcomer would have as many."""
        longest, line = max(self._lines.items(), key=lambda each: len(each[1]))
        if len(line) <= len(self._lines.get(client, ())) + 1:
            raise _overloaded()
        turn = line[-1]
        self._leave(longest, turn)
        if not turn.done():
            turn.set_exception(_overloaded())

    def _leave(self, client: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(client)
        if line is None or turn not in line:
            return
        line.remove(turn)
        if not line:
            del self._lines[client]


class GrammarPool:
    """The threads of one server. Event loop only."""

    def __init__(self) -> None:
        self._quick = _Lane("grammar")
        self._slow = _Lane("large-grammar")

    async def run(self, work: Callable[[], T], num_chars: int, client: str = "") -> T:
        """Work on a grammar in its turn; cancelled before that, it is not begun.

        Args:
            work: makes it.
            num_chars: size of what the client sent for it.
            client: whose it is; clients take turns.

        Raises:
            Overloaded: the line is full, of this client's or of many clients' requests.
        """
        lane = self._slow if num_chars > LARGE_CHARS else self._quick
        await lane.turn(client)
        try:
            return await asyncio.get_running_loop().run_in_executor(lane.executor, work)
        finally:
            lane.pass_on()

    def close(self) -> None:
        """Begin nothing more; what is at work ends by itself."""
        for lane in (self._quick, self._slow):
            lane.executor.shutdown(wait=False, cancel_futures=True)


def _overloaded() -> Overloaded:
    return Overloaded(
        f"{MAX_LINE} schemas or grammars are waiting to be compiled; try again later."
    )
