"""Frames between listener and worker: 4 bytes of length (little-endian), then msgpack.

Owns the byte layout and the size cap, in both directions. Knows no request and no state. The
listener reads through `FrameConnection` (asyncio), the worker through `read_batches` and
`encode_frame` on a blocking socket; both decode with `FrameDecoder`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast

import msgspec

from luce.errors import LuceError
from luce.protocol.messages import ToListener, ToWorker

MAX_FRAME_BYTES = 16 * 2**20
"""Largest body of a frame. The longest honest message is a prompt: 4 bytes a token."""

READ_BYTES = 256 * 1024
_HEADER = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()

Message = TypeVar("Message")


class FrameError(LuceError):
    """The byte stream is not what the protocol says; the connection cannot go on."""


class FrameTooLarge(FrameError):
    """A message is over `MAX_FRAME_BYTES`. On send nothing was written."""


class FrameTruncated(FrameError):
    """The peer ended in the middle of a frame."""


class FrameGarbage(FrameError):
    """A frame's body is not one of the messages this side expects."""


def encode_frame(message: ToWorker | ToListener) -> bytearray:
    """Encode one message with its length in front.

    Raises:
        FrameTooLarge: the body is over `MAX_FRAME_BYTES`.
        FrameGarbage: a field holds a value the wire cannot carry, e.g. an integer >= 2**64.
    """
    frame = bytearray(_HEADER.size)
    try:
        _ENCODER.encode_into(message, frame, _HEADER.size)
    except (TypeError, ValueError, OverflowError) as error:
        raise FrameGarbage(f"{type(message).__name__} cannot be sent: {error}.") from error
    size = len(frame) - _HEADER.size
    if size > MAX_FRAME_BYTES:
        raise FrameTooLarge(
            f"{type(message).__name__} is {size} bytes; a frame holds {MAX_FRAME_BYTES}."
        )
    _HEADER.pack_into(frame, 0, size)
    return frame


class FrameDecoder(Generic[Message]):
    """Turns a byte stream, split anywhere, into messages. One per connection.

    After it raised, every further call raises the same error: the stream has no border left
    to resume at.
    """

    def __init__(self, message_type: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(message_type)
        self._buffer = bytearray()
        self._error: FrameError | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """Take the next bytes; give the messages they complete, in order.

        Raises:
            FrameTooLarge: a length is over the cap; found before its body is buffered.
            FrameGarbage: a body does not decode.
        """
        if self._error is not None:
            raise self._error
        try:
            if self._buffer:
                self._buffer += data
                messages, num_used = self._take(self._buffer)
                del self._buffer[:num_used]
            else:
                messages, num_used = self._take(data)
                if num_used < len(data):
                    self._buffer += data[num_used:]
            return messages
        except FrameError as error:
            self._error = error
            self._buffer.clear()
            raise

    def end(self) -> None:
        """The peer closed.

        Raises:
            FrameTruncated: bytes of an unfinished frame are left.
        """
        if self._error is None and self._buffer:
            raise FrameTruncated(f"The peer closed {len(self._buffer)} bytes into a frame.")

    def _take(self, data: bytes | bytearray | memoryview) -> tuple[list[Message], int]:
        """Decode the whole frames, where they are; also says how many bytes they have."""
        messages: list[Message] = []
        start = 0
        with memoryview(data) as view:
            while (body := start + _HEADER.size) <= len(view):
                (size,) = _HEADER.unpack_from(view, start)
                if size > MAX_FRAME_BYTES:
                    raise FrameTooLarge(
                        f"The peer announced {size} bytes; a frame holds {MAX_FRAME_BYTES}."
                    )
                if body + size > len(view):
                    break
                messages.append(self._decode(view[body : body + size]))
                start = body + size
        return messages, start

    def _decode(self, body: memoryview) -> Message:
        with body:
            try:
                return self._decoder.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                reason = str(error)
        raise FrameGarbage(f"The peer sent a frame that is no message: {reason}.")


def worker_decoder() -> FrameDecoder[ToWorker]:
    """Decoder of the worker's end."""
    return FrameDecoder(ToWorker)


def listener_decoder() -> FrameDecoder[ToListener]:
    """Decoder of the listener's end."""
    return FrameDecoder(ToListener)


def read_batches(sock: socket.socket, decoder: FrameDecoder[Message]) -> Iterator[list[Message]]:
    """Read a blocking socket until the peer closes; yield the messages of each read.

    Raises:
        FrameError: the stream broke the protocol or ended inside a frame.
        OSError: the socket failed.
    """
    while data := sock.recv(READ_BYTES):
        batch = decoder.feed(data)
        if batch:
            yield batch
    decoder.end()


class FrameConnection(asyncio.Protocol):
    """The listener's end: messages in by callback, messages out by `send`.

    Lives on the event loop. `on_messages` gets the messages of one read; `on_closed` is called
    exactly once, with the reason, or None for an orderly end between two frames.
    """

    def __init__(
        self,
        on_messages: Callable[[list[ToListener]], None],
        on_closed: Callable[[Exception | None], None],
    ) -> None:
        self._on_messages = on_messages
        self._on_closed = on_closed
        self._decoder = listener_decoder()
        self._transport: asyncio.Transport | None = None
        self._reason: Exception | None = None

    async def open(self, sock: socket.socket) -> None:
        """Take over one end of a Unix socketpair; callbacks may come before this returns.

        Raises:
            OSError: the socket is closed or of another family.
        """
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=sock)

    def send(self, message: ToWorker) -> None:
        """Queue one message; after the end of the connection it goes nowhere.

        Raises:
            FrameTooLarge: the message is over the cap; nothing was sent.
            FrameGarbage: the message cannot be encoded; nothing was sent.
        """
        frame = encode_frame(message)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def close(self, reason: Exception | None = None, last: ToWorker | None = None) -> None:
        """End the connection now, unsent bytes included; `on_closed` gets the reason.

        Args:
            reason: why.
            last: sent before if the kernel takes it: a worker that is told of an end does not take
                it for our death.
        """
        if self._transport is None or self._transport.is_closing():
            return
        if last is not None:
            self.send(last)
        self._reason = reason
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the socket is ours."""
        # A cast, not a check: uvloop's transports have the methods and another ancestry.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        try:
            messages = self._decoder.feed(data)
        except FrameError as error:
            self.close(error)
            return
        if messages:
            self._on_messages(messages)

    def eof_received(self) -> bool:
        """asyncio: the peer closed; False closes our end too."""
        try:
            self._decoder.end()
        except FrameTruncated as error:
            self._reason = error
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it is over."""
        self._transport = None
        self._on_closed(exc or self._reason)
