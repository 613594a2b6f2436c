"""CancelWhenGone; the protocol itself is tested over sockets in `tests/http`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from luce.errors import ClientGone
from luce.listener.connection import CancelWhenGone, Client, SlowClient
from luce.testing.virtual_time import VIRTUAL_TIME, VirtualTimeLoop

pytestmark = pytest.mark.anyio


class Transport:
    is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0


def client() -> Client:
    return Client(Transport(), None)  # type: ignore[arg-type]


async def test_body_is_cancelled_and_the_reason_is_told() -> None:
    someone = client()
    cleaned_up = False
    asyncio.get_running_loop().call_later(0.01, someone.notify_lost)
    with pytest.raises(ClientGone):
        async with CancelWhenGone(someone):
            try:
                await asyncio.sleep(10)
            finally:
                cleaned_up = True
    assert cleaned_up
    await asyncio.sleep(0)  # Nothing is left of the cancellation.


async def test_client_that_is_gone_already() -> None:
    someone = client()
    someone.notify_lost()
    with pytest.raises(ClientGone):
        async with CancelWhenGone(someone):
            pytest.fail("nobody is left to serve")


async def test_half_closed_is_not_gone() -> None:
    someone = client()
    async with CancelWhenGone(someone):
        someone.notify_half_closed()
        await asyncio.sleep(0)
    assert someone.half_closed
    assert not someone.is_gone


async def test_leaving_afterwards_harms_nobody() -> None:
    someone = client()
    async with CancelWhenGone(someone):
        pass
    someone.notify_lost()
    await asyncio.sleep(0)


async def test_other_errors_and_other_cancellations_pass() -> None:
    with pytest.raises(ValueError):
        async with CancelWhenGone(client()):
            raise ValueError

    async def work() -> None:
        async with CancelWhenGone(client()):
            await asyncio.sleep(10)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class UnreadTransport(Transport):
    """What the kernel does not take, as the other side reads nothing."""

    num_bytes = 10
    was_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.num_bytes

    def get_extra_info(self, name: str) -> Any:
        return SimpleNamespace(setsockopt=lambda *_: None)

    def abort(self) -> None:
        self.was_aborted = True

    def take_all(self) -> None:
        self.num_bytes = 0


IN_VIRTUAL_TIME = pytest.mark.parametrize("anyio_backend", [VIRTUAL_TIME])


@IN_VIRTUAL_TIME
async def test_who_reads_nothing_for_too_long_is_dropped() -> None:
    transport = UnreadTransport()
    clock = asyncio.get_running_loop().time
    with pytest.raises(SlowClient, match="nothing for 2 s"):
        await Client(transport, None).flushed(2.0)  # type: ignore[arg-type]
    assert 2.0 <= clock() < 2.1
    assert transport.was_aborted


@IN_VIRTUAL_TIME
async def test_nobody_is_slow_while_the_server_itself_stood_still() -> None:
    transport = UnreadTransport()
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
    loop.call_later(1.0, loop.stand_still, 100.0)
    loop.call_later(102.0, transport.take_all)
    await Client(transport, None).flushed(3.0)  # type: ignore[arg-type]
    assert not transport.was_aborted


class WritingTransport(Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def answering(**state: Any) -> tuple[Client, WritingTransport]:
    """A client in the middle of an answer."""
    transport = WritingTransport()
    client = Client(transport, None)  # type: ignore[arg-type]
    cycle = {"disconnected": False, "response_complete": False, "chunked_encoding": True, **state}
    client.notify_answering(SimpleNamespace(**cycle))  # type: ignore[arg-type]
    return client, transport


@pytest.mark.parametrize(
    ("chunked", "sent"), [(True, b"b\r\nhello world\r\n"), (False, b"hello world")]
)
async def test_parts_are_framed_as_the_head_has_said(chunked: bool, sent: bytes) -> None:
    client, transport = answering(chunked_encoding=chunked)
    client.write(b"hello world")
    assert transport.written == [sent]


@pytest.mark.parametrize("state", [{"disconnected": True}, {"response_complete": True}])
async def test_nothing_is_written_behind_the_end(state: dict[str, bool]) -> None:
    client, transport = answering(**state)
    client.write(b"late")
    assert transport.written == []


async def test_an_empty_part_is_not_the_end() -> None:
    client, transport = answering()
    client.write(b"")
    assert transport.written == []


async def test_before_any_request_nothing_is_written() -> None:
    transport = WritingTransport()
    Client(transport, None).write(b"x")  # type: ignore[arg-type]
    assert transport.written == []
