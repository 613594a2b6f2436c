"""A streamed answer on the wire: one writer, comments while nothing comes, bounded output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from starlette.types import Send

from luce.listener.connection import PROBE_INTERVAL_S, Client, SlowClient
from luce.listener.dialects.base import EVENT_STREAM_TYPE

KEEP_ALIVE = b": keep-alive\n\n"
MAX_PENDING_BYTES = 2**20
"""Output a client may leave unread before it is dropped."""

_HEADERS = [
    (b"content-type", EVENT_STREAM_TYPE.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def comment() -> bytes:
    """What fills silence where the API has nothing better."""
    return KEEP_ALIVE


class EventStream:
    """Sends the head, then what is `put`, in order. Use as an async context manager.

    A client that keeps up is sent to at once, by the one who produces: a task switch for each
    token would cost as much as all the rest of its way. What a slow client does
    not take yet is left to a writer, so that `put` never waits for a client. The writer also
    breaks silence. Leaving the context normally waits until everything has gone out; leaving it
    by an error does not.

    Args:
        send: of the request.
        client: who reads.
        keep_alive_interval_s: longest silence.
        stall_s: a client that reads nothing for this long is dropped.
        keep_alive: what is sent then.
    """

    def __init__(
        self,
        send: Send,
        client: Client,
        keep_alive_interval_s: float,
        stall_s: float,
        keep_alive: Callable[[], bytes] = comment,
    ) -> None:
        self._send = send
        self._client = client
        self._keep_alive_interval_s = keep_alive_interval_s
        self._stall_s = stall_s
        self._keep_alive = keep_alive
        self._pending = bytearray()
        self._wake = asyncio.Event()
        self._is_closing = False
        self._writer: asyncio.Task[None] | None = None
        self._clock_s = asyncio.get_running_loop().time
        self._sent_at_s = self._clock_s()

    async def __aenter__(self) -> Self:
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        self._client.on_change(self._wake.set)
        self._writer = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        writer = self._writer
        if writer is None:
            return
        self._is_closing = True
        self._wake.set()
        try:
            if exc_type is None:
                await writer
        finally:
            self._client.off_change(self._wake.set)
            failure = _end(writer)
            if isinstance(failure, SlowClient):
                # Dropping the client is what cancelled us: say why.
                raise failure

    def put(self, data: bytes) -> None:
        """Send bytes that belong together, or queue them for a client that is behind.

        Raises:
            SlowClient: too much is pending; the connection is dropped.
        """
        unsent = len(self._pending) + self._client.pending_bytes
        if not unsent:
            self._write_now(data)
            return
        if unsent + len(data) > MAX_PENDING_BYTES:
            self._client.reset()
            raise SlowClient(f"The client left {MAX_PENDING_BYTES} bytes unread.")
        self._pending += data
        self._wake.set()

    def _write_now(self, data: bytes) -> None:
        self._client.write(data)
        self._sent_at_s = self._clock_s()

    async def _write(self) -> None:
        while self._pending or not self._is_closing:
            if not self._pending:
                await self._wait_for_data()
                continue
            await self._client.writable(self._stall_s)
            data = bytes(self._pending)
            self._pending.clear()
            self._write_now(data)
        # The end goes out last of all: after it the connection belongs to the next request.
        await self._client.flushed(self._stall_s)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _wait_for_data(self) -> None:
        """Until there is something to send; a sign of life becomes that when nothing else comes."""
        probing = self._client.half_closed
        interval_s = PROBE_INTERVAL_S if probing else self._keep_alive_interval_s
        sent_at_s = self._sent_at_s
        self._wake.clear()
        try:
            async with asyncio.timeout_at(sent_at_s + interval_s):
                await self._wake.wait()
        except TimeoutError:
            # Meanwhile `put` may have sent: then the silence has only begun.
            if self._sent_at_s == sent_at_s:
                self._pending += self._keep_alive()
        if self._client.half_closed and not probing and not self._pending:
            self._pending += self._keep_alive()


def _end(writer: asyncio.Task[None]) -> BaseException | None:
    if not writer.done():
        writer.cancel()
        return None
    return None if writer.cancelled() else writer.exception()
