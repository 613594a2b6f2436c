from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from luce.testing.virtual_time import VIRTUAL_TIME

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return VIRTUAL_TIME


async def test_hours_pass_at_once_and_in_order() -> None:
    clock = asyncio.get_running_loop().time
    began_s, seen = clock(), []

    async def sleeper(hours: float) -> None:
        await asyncio.sleep(3600 * hours)
        seen.append((hours, clock() - began_s))

    computed_s = time.process_time()
    await asyncio.gather(*(sleeper(hours) for hours in (3, 1, 2)))
    assert time.process_time() - computed_s < 10
    assert seen == [(hours, pytest.approx(3600 * hours)) for hours in (1, 2, 3)]


async def test_time_stands_still_while_something_can_run() -> None:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    late = asyncio.create_task(asyncio.sleep(0.001))
    for _ in range(1000):
        await asyncio.sleep(0)
    assert clock() == began_s
    assert not late.done()
    await late


async def test_a_timeout_is_no_later_than_it_says() -> None:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await asyncio.sleep(61)
    assert clock() - began_s == pytest.approx(60)


async def test_sockets_that_are_ready_come_first() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.sendall(b"x")
        async with asyncio.timeout(0.001):
            assert await asyncio.get_running_loop().sock_recv(near, 1) == b"x"
