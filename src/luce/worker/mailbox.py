"""Mailbox: the engine thread's way to the listener; that thread never waits for a socket.

A reader thread fills the inbox. What is sent goes straight into the socket, as far as the kernel
takes it; a writer thread sends what is left, for which it waits. The usual step thus costs one
system call and no switch of threads: a writer would get the interpreter only once the engine
computes, when every core is wanted.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable

from luce.protocol.frames import FrameError, encode_frame, read_batches, worker_decoder
from luce.protocol.messages import Shutdown, ToListener
from luce.worker.ports import Incoming

log = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 2.0
"""How long the last messages may take to leave when the worker ends."""

PIECE_BYTES = 256 * 1024
"""Sent at a time of what is left: whoever sends more meanwhile waits for its copy."""


class Mailbox:
    """Both directions of one socket, as queues.

    Args:
        sock: the worker's end, blocking; owned from here on.
        on_closed: called once, from the thread that notices, when the listener is gone or
            breaks the protocol; not called after `close`.
    """

    def __init__(self, sock: socket.socket, on_closed: Callable[[], None]) -> None:
        self._sock = sock
        self._on_closed = on_closed
        self._inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._outbox = bytearray()
        self._outbox_changed = threading.Condition()
        self._is_closing = False
        self._is_told = False
        """Whether the listener asked for the end: then it may go at any time."""
        self._end_lock = threading.Lock()
        self._is_ended = False
        self._threads = [
            threading.Thread(target=self._read, name="mailbox-reader", daemon=True),
            threading.Thread(target=self._write, name="mailbox-writer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def receive(self, *, wait: bool) -> list[Incoming]:
        """Everything that has come; with `wait`, at least one message."""
        messages: list[Incoming] = []
        with contextlib.suppress(queue.Empty):
            if wait:
                messages.append(self._inbox.get())
            while True:
                messages.append(self._inbox.get_nowait())
        return messages

    def post(self, message: Incoming) -> None:
        """Put a message of our own into the inbox; from any thread, and from a signal handler."""
        self._inbox.put(message)

    def send(self, message: ToListener) -> None:
        """Send a message to the listener; never waits for it.

        Raises:
            FrameError: the message cannot be sent; nothing was.
        """
        data = encode_frame(message)
        with self._outbox_changed:
            if not self._outbox:
                del data[: self._send_now(data)]
            if data:
                self._outbox += data
                self._outbox_changed.notify()

    def close(self) -> None:
        """Send what is queued, then close the socket."""
        self._claim_end()
        with self._outbox_changed:
            self._is_closing = True
            self._outbox_changed.notify()
        self._threads[1].join(CLOSE_PATIENCE_S)
        with contextlib.suppress(OSError):  # The listener may have closed first.
            self._sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(CLOSE_PATIENCE_S)
        self._sock.close()

    def _send_now(self, data: bytearray) -> int:
        """Bytes that the kernel took; none of what is for a listener that has gone."""
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # The reader sees the end too, and tells it.

    def _read(self) -> None:
        try:
            for batch in read_batches(self._sock, worker_decoder()):
                for message in batch:
                    self._is_told = self._is_told or isinstance(message, Shutdown)
                    self._inbox.put(message)
        except (FrameError, OSError) as error:
            self._listener_gone(error)
        else:
            self._listener_gone(None)

    def _write(self) -> None:
        while True:
            with self._outbox_changed:
                self._outbox_changed.wait_for(lambda: self._outbox or self._is_closing)
                if not self._outbox:
                    return
                data = self._outbox[:PIECE_BYTES]
            try:
                # Others only queue meanwhile: the outbox is not empty.
                self._sock.sendall(data)
            except OSError:
                return  # The reader sees the end too, and whether it was to be expected.
            with self._outbox_changed:
                del self._outbox[: len(data)]

    def _listener_gone(self, error: Exception | None) -> None:
        if self._claim_end():
            if not self._is_told:
                log.warning("listener gone", extra={"error": str(error or "end of file")})
            self._on_closed()

    def _claim_end(self) -> bool:
        """Whether the caller is the first to see the end."""
        with self._end_lock:
            was_ended, self._is_ended = self._is_ended, True
        return not was_ended
