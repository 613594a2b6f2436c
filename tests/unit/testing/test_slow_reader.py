from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from luce.testing.slow_reader import SlowReader
from luce.testing.virtual_time import VIRTUAL_TIME

pytestmark = pytest.mark.anyio


class Server:
    """Answers every connection with as many bytes as the reader takes."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.request = b""
        self.sent = 0
        self.error: Exception | None = None
        self.ended = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = await reader.readuntil(b"\r\n\r\n")
        try:
            while self.sent < self.num_bytes:
                writer.write(b"x" * 1000)
                await writer.drain()
                self.sent += 1000
        except ConnectionError as error:
            self.error = error
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self.ended.set()


@contextlib.asynccontextmanager
async def serving(num_bytes: int) -> AsyncIterator[tuple[Server, int]]:
    server = Server(num_bytes)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    async with listener:
        yield server, listener.sockets[0].getsockname()[1]
        await asyncio.wait_for(server.ended.wait(), 60)


async def test_it_writes_the_request_and_reads_all_when_asked():
    async with serving(50_000) as (server, port), SlowReader("127.0.0.1", port) as reader:
        await reader.send("POST", "/v1/x", b"{}", {"X-Extra": "1"})
        assert len(await reader.read_all()) == 50_000
        head = server.request.decode()
        assert head.startswith("POST /v1/x HTTP/1.1\r\n")
        assert "Content-Length: 2\r\n" in head
        assert "X-Extra: 1\r\n" in head


async def test_reading_nothing_makes_the_server_wait_and_a_reset_tells_it():
    async with serving(100_000_000) as (server, port):
        reader = SlowReader("127.0.0.1", port)
        async with reader:
            await reader.send("GET", "/")
            stuck_at = -1
            while not 0 < server.sent == stuck_at:
                stuck_at = server.sent
                await asyncio.sleep(0.1)
            assert stuck_at < 100_000_000
            reader.reset()
    assert isinstance(server.error, ConnectionError)


@pytest.mark.parametrize("anyio_backend", [VIRTUAL_TIME])
async def test_it_reads_at_the_rate_it_is_told(monkeypatch: pytest.MonkeyPatch):
    async def plenty(max_bytes: int) -> bytes:
        return b"x" * max_bytes

    reader = SlowReader("127.0.0.1", 1)
    monkeypatch.setattr(reader, "read", plenty)
    for seconds, num_reads in ((0.02, 1), (0.32, 7), (1.97, 40)):
        assert len(await reader.read_for(seconds, bytes_per_s=10_000)) == num_reads * 500
    reader.close()


async def test_what_it_leaves_unread_stays_for_later():
    async with serving(50_000) as (_, port), SlowReader("127.0.0.1", port) as reader:
        await reader.send("GET", "/")
        begun = await reader.read_for(0.1, bytes_per_s=10_000)
        assert len(begun + await reader.read_all()) == 50_000


async def test_reading_for_a_while_ends_on_a_silent_server():
    async with serving(1000) as (_, port):
        async with SlowReader("127.0.0.1", port) as reader:
            assert await reader.read_for(0.05, bytes_per_s=1000) == b""
            await reader.send("GET", "/")
            assert len(await reader.read_all()) == 1000
