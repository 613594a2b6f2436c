"""EventStream: sent at once to who keeps up, in order to who does not, never silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from luce.listener import sse
from luce.listener.connection import SlowClient
from luce.listener.sse import KEEP_ALIVE, EventStream
from luce.testing.virtual_time import VIRTUAL_TIME

pytestmark = pytest.mark.anyio

INTERVAL_S = 5.0


@pytest.fixture
def anyio_backend() -> Any:
    return VIRTUAL_TIME


class FakeClient:
    """A connection whose kernel takes what the test lets it take."""

    def __init__(self) -> None:
        self.half_closed = False
        self.pending_bytes = 0
        self.was_reset = False
        self.takes_all = asyncio.Event()
        self.takes_all.set()
        self.callbacks: set[Callable[[], None]] = set()
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def on_change(self, callback: Callable[[], None]) -> None:
        self.callbacks.add(callback)

    def off_change(self, callback: Callable[[], None]) -> None:
        self.callbacks.discard(callback)

    def reset(self) -> None:
        self.was_reset = True

    async def writable(self, stall_s: float) -> None:
        await self.takes_all.wait()

    flushed = writable

    def fall_behind(self) -> None:
        self.takes_all.clear()
        self.pending_bytes = 1

    def catch_up(self) -> None:
        self.pending_bytes = 0
        self.takes_all.set()


class Wire:
    """What was sent: the head and the end as messages, the parts between them as bytes."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.messages: list[Any] = []

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        """Of the parts that are not the end."""
        return self.client.written

    def stream(self, interval_s: float = 60.0) -> EventStream:
        return EventStream(self.send, self.client, interval_s, 1.0)  # type: ignore[arg-type]


async def turns(count: int = 5) -> None:
    """Let other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_keeps_up_gets_each_event_before_put_returns() -> None:
    wire = Wire()
    async with wire.stream() as out:
        assert wire.messages[0]["status"] == 200
        for index, data in enumerate((b"one", b"two", b"three")):
            out.put(data)
            assert wire.bodies[index] == data
    assert wire.bodies == [b"one", b"two", b"three"]
    assert wire.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert not wire.client.callbacks


async def test_who_is_behind_gets_it_later_joined_and_in_order() -> None:
    wire = Wire()
    async with wire.stream() as out:
        out.put(b"one")
        wire.client.fall_behind()
        out.put(b"two")
        out.put(b"three")
        await turns()
        assert wire.bodies == [b"one"]
        # The kernel has taken what it had; ours is still queued, so the next must queue too.
        wire.client.pending_bytes = 0
        out.put(b"four")
        assert wire.bodies == [b"one"]
        wire.client.catch_up()
        await turns()
        assert wire.bodies == [b"one", b"twothreefour"]
        out.put(b"five")
        assert wire.bodies[-1] == b"five"


async def test_the_end_waits_for_what_is_queued() -> None:
    wire = Wire()
    leaving = asyncio.Event()

    async def use() -> None:
        async with wire.stream() as out:
            wire.client.fall_behind()
            out.put(b"late")
            leaving.set()

    task = asyncio.create_task(use())
    await leaving.wait()
    await turns()
    assert not task.done()
    wire.client.catch_up()
    await task
    assert wire.bodies == [b"late"]
    assert wire.messages[1:] == [{"type": "http.response.body", "body": b"", "more_body": False}]


async def test_silence_is_broken_and_counts_from_the_last_event() -> None:
    wire = Wire()
    async with wire.stream(INTERVAL_S) as out:
        for _ in range(6):
            await asyncio.sleep(INTERVAL_S / 2)
            out.put(b"x")
        assert KEEP_ALIVE not in wire.bodies
        await asyncio.sleep(INTERVAL_S * 2.5)
        assert wire.bodies[6:] == [KEEP_ALIVE] * 2


async def test_a_client_that_half_closes_is_probed_at_once() -> None:
    wire = Wire()
    async with wire.stream():
        await turns()
        wire.client.half_closed = True
        for callback in wire.client.callbacks:
            callback()
        await turns()
        assert wire.bodies == [KEEP_ALIVE]


async def test_too_much_pending_drops_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_PENDING_BYTES", 10)
    wire = Wire()
    with pytest.raises(SlowClient):
        async with wire.stream() as out:
            wire.client.fall_behind()
            out.put(b"x" * 9)
            assert not wire.client.was_reset
            out.put(b"y")
    assert wire.client.was_reset
    assert wire.bodies == []


async def test_an_error_inside_ends_without_waiting() -> None:
    wire = Wire()
    with pytest.raises(ZeroDivisionError):
        async with wire.stream() as out:
            wire.client.fall_behind()
            out.put(b"never read")
            raise ZeroDivisionError
    assert wire.bodies == []
