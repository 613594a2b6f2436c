"""GrammarPool: a line of its own for large grammars, an end to it, and nothing for who left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from luce.errors import Overloaded
from luce.listener import grammar_pool
from luce.listener.grammar_pool import LARGE_CHARS, GrammarPool

pytestmark = pytest.mark.anyio
LARGE = LARGE_CHARS + 1


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def pool() -> Iterator[GrammarPool]:
    made = GrammarPool()
    yield made
    made.close()


async def test_small_ones_do_not_wait_for_large_ones(pool: GrammarPool) -> None:
    gate = threading.Event()
    large = [asyncio.create_task(pool.run(lambda: gate.wait(120), LARGE)) for _ in range(3)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(pool.run(lambda: "small", 10), 60) == "small"
    assert not any(task.done() for task in large)
    gate.set()
    assert await asyncio.gather(*large) == [True] * 3


async def test_what_nobody_waits_for_is_not_begun(pool: GrammarPool) -> None:
    gate, begun = threading.Event(), []
    first = asyncio.create_task(pool.run(lambda: gate.wait(120), LARGE))
    second = asyncio.create_task(pool.run(lambda: begun.append("second"), LARGE))
    third = asyncio.create_task(pool.run(lambda: begun.append("third"), LARGE))
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    gate.set()
    await asyncio.gather(first, third)
    assert begun == ["third"]


async def test_the_line_has_an_end(pool: GrammarPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_pool, "MAX_LINE", 2)
    gate = threading.Event()
    waiting = [asyncio.create_task(pool.run(lambda: gate.wait(120), LARGE)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 schemas"):
        await pool.run(lambda: None, LARGE)
    assert await pool.run(lambda: 5, 10) == 5
    gate.set()
    await asyncio.gather(*waiting)
    assert await pool.run(lambda: 6, LARGE) == 6


async def test_a_failure_is_the_caller_s(pool: GrammarPool) -> None:
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0, 1)
    assert await pool.run(lambda: 1, 1) == 1


class Line:
    """Works of several clients behind one that holds the thread; notes the order they come in."""

    def __init__(self, pool: GrammarPool) -> None:
        self.gate = threading.Event()
        self.order: list[str] = []
        self._pool = pool
        self._gatekeeper = asyncio.create_task(pool.run(lambda: self.gate.wait(120), LARGE, "x"))

    async def add(self, client: str, *names: str) -> list[asyncio.Task[None]]:
        tasks = [
            asyncio.create_task(
                self._pool.run(lambda name=name: self.order.append(name), LARGE, client)
            )
            for name in names
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return tasks

    async def open(self, tasks: list[asyncio.Task[None]]) -> list[object]:
        self.gate.set()
        await self._gatekeeper
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_clients_take_turns(pool: GrammarPool) -> None:
    line = Line(pool)
    tasks = await line.add("a", "a1", "a2", "a3", "a4")
    tasks += await line.add("b", "b1", "b2")
    tasks += await line.add("c", "c1")
    assert await line.open(tasks) == [None] * 7
    assert line.order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


async def test_who_fills_the_line_makes_room_for_others(
    pool: GrammarPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_pool, "MAX_LINE", 6)
    line = Line(pool)
    many = await line.add("a", "a1", "a2", "a3", "a4", "a5")
    one_more = await line.add("a", "a6")
    few = await line.add("b", "b1", "b2", "b3")
    few += await line.add("c", "c1")
    outcomes = await line.open(many + one_more + few)
    # Its own sixth, then its latest for b's two and c's one; b's third would be as many as a's.
    refused = [isinstance(outcome, Overloaded) for outcome in outcomes]
    assert refused == [False, False, True, True, True, True, False, False, True, False]
    assert line.order == ["a1", "b1", "c1", "a2", "b2"]
    assert await pool.run(lambda: "free", LARGE, "a") == "free"


async def test_turns_of_who_left_are_passed_on(pool: GrammarPool) -> None:
    line = Line(pool)
    first, second = await line.add("a", "a1", "a2")
    (third,) = await line.add("b", "b1")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (await line.open([second, third])) == [None, None]
    assert line.order == ["a2", "b1"]


async def test_a_turn_that_comes_as_its_client_leaves_is_not_lost(pool: GrammarPool) -> None:
    line = Line(pool)
    (first,) = await line.add("a", "a1")
    (second,) = await line.add("b", "b1")
    lane = pool._slow
    line.gate.set()
    lane.pass_on()  # The turn is there; its client goes before it sees that.
    first.cancel()
    assert await line.open([second]) == [None]
    assert line.order == ["b1"]
    assert await pool.run(lambda: 1, LARGE) == 1


async def test_who_is_turned_away_as_it_leaves_passes_nothing_on(
    pool: GrammarPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_pool, "MAX_LINE", 4)
    line = Line(pool)
    first, second, third = await line.add("a", "a1", "a2", "a3")
    other = asyncio.create_task(pool.run(lambda: line.order.append("b1"), LARGE, "b"))
    asyncio.get_running_loop().call_soon(third.cancel)  # Behind b, which needs its place.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert third.cancelled() or third.done()
    assert not first.done()
    lane = pool._slow
    assert {client: len(turns) for client, turns in lane._lines.items()} == {"a": 2, "b": 1}
    assert await line.open([first, second, other]) == [None] * 3
    assert line.order == ["a1", "b1", "a2"]
