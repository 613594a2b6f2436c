"""The HTTP protocol of one connection, and what the app may know and do about its client.

Adds to uvicorn's parser what its ASGI interface cannot say: how much output is pending, a
hard drop, who has only closed the sending half, and our error bodies for what is no HTTP.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from luce.errors import ClientGone, InvalidRequest
from luce.listener.dialects.openai_chat import error_body
from luce.listener.request_head import RequestHead, check_head

CLIENT_EXTENSION = "luce.client"
MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
UNREAD_BODY_S = 5.0
"""How long an upload may go on after its answer."""
PROBE_INTERVAL_S = 1.0
"""How often a client that has closed its sending half is asked whether it still listens."""

SEND_BUFFER_BYTES = 64 * 1024
"""Output the kernel may hold per connection; it doubles that for its own bookkeeping."""

UNSENT_BYTES = 8 * 1024
"""How much of it may wait for the client to read."""

_NOT_SENT_LOW_WATER: int = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
"""Linux's number where Python does not name it."""

_PROBE_CHECK_S = 0.05
_FLUSH_POLL_S = 0.01
_LONGEST_POLL_S = 0.1
"""What one look at a client counts as at most: while we stood still, nobody could read."""
_INTERIM_RESPONSE = b"HTTP/1.1 102 Processing\r\n\r\n"
_LINGER_NOT_AT_ALL = struct.pack("ii", 1, 0)
_GONE = select.POLLERR | select.POLLHUP


class SlowClient(ClientGone):
    """The client read nothing for too long, or let too much pile up; it was dropped."""


class Client:
    """One connection as the app sees it; reached through `client_of(scope)`.

    Attributes:
        half_closed: the client has closed its sending half: it may still be reading.
    """

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self.half_closed = False
        self._transport = transport
        self._flow = flow
        self._lost = asyncio.Event()
        self._cycle: RequestResponseCycle | None = None
        self._callbacks: set[Callable[[], None]] = set()

    @property
    def is_gone(self) -> bool:
        """Nothing can be sent any more."""
        return self._lost.is_set() or self._transport.is_closing()

    @property
    def pending_bytes(self) -> int:
        """Output the kernel has not taken yet."""
        return 0 if self._lost.is_set() else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Send a part of the body of the answer whose head has been sent; never waits.

        The way through ASGI does the same with five times the work.
        """
        cycle = self._cycle
        if not data or cycle is None or cycle.disconnected or cycle.response_complete:
            return
        self._transport.write(
            b"%x\r\n%b\r\n" % (len(data), data) if cycle.chunked_encoding else data
        )

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back when the client is gone or has closed its sending half."""
        self._callbacks.add(callback)

    def off_change(self, callback: Callable[[], None]) -> None:
        """Undo `on_change`."""
        self._callbacks.discard(callback)

    def reset(self) -> None:
        """Close at once; what is pending, in the kernel too, is thrown away."""
        if not self.is_gone:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT_AT_ALL)
        self._transport.abort()

    async def close(self) -> None:
        """Break off; what the kernel already has may still arrive."""
        self._transport.abort()
        await self._lost.wait()

    async def writable(self, stall_s: float) -> None:
        """Wait until a write would not pile up.

        Raises:
            SlowClient: nothing was read for `stall_s`; the connection is dropped.
        """
        if self._flow.write_paused:
            await self._wait_for(lambda: not self._flow.write_paused, stall_s)

    async def flushed(self, stall_s: float) -> None:
        """Wait until the kernel has everything, or the client is gone.

        Raises:
            SlowClient: as `writable`.
        """
        if self.pending_bytes:
            await self._wait_for(lambda: self.pending_bytes == 0, stall_s)

    async def _wait_for(self, done: Callable[[], bool], stall_s: float) -> None:
        clock = asyncio.get_running_loop().time
        pending, looked_at, idle_s = self.pending_bytes, clock(), 0.0
        while not done() and not self._lost.is_set():
            await asyncio.sleep(_FLUSH_POLL_S)
            idle_s += min(clock() - looked_at, _LONGEST_POLL_S)
            looked_at = clock()
            if self.pending_bytes < pending:
                idle_s = 0.0
            elif idle_s > stall_s:
                self.reset()
                raise SlowClient(f"The client read nothing for {stall_s:g} s.")
            pending = self.pending_bytes

    def notify_answering(self, cycle: RequestResponseCycle) -> None:
        """The protocol's side: this request's answer is the connection's next."""
        self._cycle = cycle

    def notify_half_closed(self) -> None:
        """The protocol's side: the client's FIN has come."""
        self.half_closed = True
        self._notify()

    def notify_lost(self) -> None:
        """The protocol's side: the connection is over."""
        self._lost.set()
        self._notify()

    def _notify(self) -> None:
        for callback in list(self._callbacks):
            callback()


def client_of(scope: Any) -> Client:
    """The connection a request came over."""
    client: Client = scope["extensions"][CLIENT_EXTENSION]
    return client


class CancelWhenGone:
    """Cancels the body of an `async with` when the client goes, and raises ClientGone then."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._task: asyncio.Task[Any] | None = None
        self._was_cancelled = False

    async def __aenter__(self) -> None:
        if self._client.is_gone:
            raise ClientGone("The client left before it was served.")
        self._task = asyncio.current_task()
        self._client.on_change(self._check)

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self._client.off_change(self._check)
        if self._was_cancelled and self._task is not None:
            self._task.uncancel()
            if exc_type is asyncio.CancelledError:
                raise ClientGone("The client closed its connection.")

    def _check(self) -> None:
        if self._client.is_gone and not self._was_cancelled and self._task is not None:
            self._was_cancelled = True
            self._task.cancel()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with the additions of this module."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start with a client and a limit on how long its first request may take to begin."""
        super().connection_made(transport)
        _keep_output_here(transport)
        self._client = Client(transport, self.flow)
        self._head: RequestHead | None = RequestHead()
        self._head_timer: asyncio.TimerHandle | None = None
        self._problem: InvalidRequest | None = None
        self._num_framing_bytes = 0
        self._arm_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the app."""
        self._disarm_head_timer()
        super().connection_lost(exc)
        self._client.notify_lost()

    def data_received(self, data: bytes) -> None:
        """Parse; a head that is too long or takes too long ends the connection."""
        if self._head is not None:
            self._arm_head_timer()
            data = self._head.feed(data)
            if self._head.num_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"The request's head is over {MAX_HEAD_BYTES} bytes.")
                return
        self._num_framing_bytes += len(data)
        super().data_received(data)
        if self._head is None and self._num_framing_bytes > MAX_HEAD_BYTES:
            self.send_400_response("The body has more framing and trailers than content.")

    def on_message_begin(self) -> None:
        """Give the app its client."""
        super().on_message_begin()
        self.scope["extensions"] = cast(Any, {CLIENT_EXTENSION: self._client})

    def on_headers_complete(self) -> None:
        """The head is whole.

        Raises:
            InvalidRequest: to the parser, which gives up; see `send_400_response`.
        """
        self._head = None
        self._disarm_head_timer()
        try:
            check_head(self.parser.get_http_version(), self.headers)
        except InvalidRequest as error:
            self._problem = error
            raise
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; what trails a body comes too late to be one and is dropped."""
        if self._head is not None:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Content has come: what framed it so far was not too much."""
        self._num_framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """What comes next is another head, or the client's end, which must be seen.

        uvicorn has stopped reading behind a large body and would go on with the app's next
        question only.
        """
        super().on_message_complete()
        self._head = RequestHead()
        if not self.pipeline:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """An upload that nobody read may end within a moment; it cannot hold the connection."""
        super().on_response_complete()
        cycle = self.cycle
        if cycle.more_body and not self.transport.is_closing():
            self.loop.call_later(UNREAD_BODY_S, self._end_upload, cycle)

    def shutdown(self) -> None:
        """The server stops: answers in progress go on, a half-sent request does not hold it up."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and cycle.more_body:
            self.transport.close()
        else:
            super().shutdown()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A client that has sent its request may close that half and go on reading."""
        if self.transport.get_extra_info("ssl_object") is not None:
            return None  # TLS connections end in both directions at once.
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering or self.cycle.more_body:
            return None
        self.cycle.keep_alive = False
        self._client.notify_half_closed()
        self._probe(since_probe_s=PROBE_INTERVAL_S)
        return True

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request in our own words and close.

        In the middle of another answer nothing can be said: the bytes would become part of it.
        """
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if self.pipeline or (cycle and cycle.response_started and not cycle.response_complete):
            self.transport.close()
            return
        body = error_body(self._problem or InvalidRequest(msg))
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """HTTP/1.0 knows no chunks: the end of such an answer is the connection's."""
        self._client.notify_answering(cycle)
        if cycle.scope["http_version"] != "1.1":
            app = _EndsByClosing(cycle, app)
        super()._start_asgi_task(cycle, app)

    def _end_upload(self, cycle: RequestResponseCycle) -> None:
        if cycle is self.cycle and cycle.more_body:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """CONNECT, and what hides in a pipeline: the app answers; uvicorn's advice is not ours."""

    def _probe(self, since_probe_s: float) -> None:
        """Find out whether a half-closed client is gone: one that is answers data with a reset.

        Before the response begins an interim response is that data; after it, the stream's
        comments are.
        """
        if self.transport.is_closing() or self.cycle.response_complete:
            return
        if _is_reset(self.transport):
            self.transport.abort()
            return
        if since_probe_s >= PROBE_INTERVAL_S:
            since_probe_s = 0.0
            if not self.cycle.response_started and self.scope["http_version"] == "1.1":
                self.transport.write(_INTERIM_RESPONSE)
        self.loop.call_later(_PROBE_CHECK_S, self._probe, since_probe_s + _PROBE_CHECK_S)

    def _arm_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _disarm_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _EndsByClosing:
    """An ASGI app whose answers without a length are sent as they are, up to the close."""

    def __init__(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._cycle = cycle
        self._app = app
        self._has_length = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def framed(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message["headers"]]
                self._has_length = b"content-length" in names
            if not self._has_length:
                # What uvicorn checks a told length with.
                self._cycle.chunked_encoding = False
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, framed)


def _keep_output_here(transport: asyncio.Transport) -> None:
    """Let the kernel take only what is soon sent, so that a client which reads nothing is seen.

    Otherwise megabytes, minutes of a stream, would look delivered.
    """
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, _NOT_SENT_LOW_WATER, UNSENT_BYTES)
    # Over TLS a limit of 0 counts as reached when nothing is pending.
    transport.set_write_buffer_limits(high=1, low=0)


def _is_reset(transport: asyncio.Transport) -> bool:
    poller = select.poll()
    poller.register(transport.get_extra_info("socket").fileno(), 0)
    return any(events & _GONE for _, events in poller.poll(0))
