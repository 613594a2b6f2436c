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
    large = [asyncio.create_task(pool.run(lambda: gate.wait(10), LARGE)) for _ in range(3)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(pool.run(lambda: "small", 10), 5) == "small"
    assert not any(task.done() for task in large)
    gate.set()
    assert await asyncio.gather(*large) == [True] * 3


async def test_what_nobody_waits_for_is_not_begun(pool: GrammarPool) -> None:
    gate, begun = threading.Event(), []
    first = asyncio.create_task(pool.run(lambda: gate.wait(10), LARGE))
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
    waiting = [asyncio.create_task(pool.run(lambda: gate.wait(10), LARGE)) for _ in range(2)]
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
