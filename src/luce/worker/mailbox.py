"""Mailbox: the engine thread's way to the listener; that thread never waits for a socket.

A reader thread fills the inbox, a writer thread empties the outbox. Both are short because
they share the interpreter with the engine thread.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable

from luce.protocol.frames import FrameError, encode_frame, read_batches, worker_decoder
from luce.protocol.messages import ToListener
from luce.worker.ports import Incoming

log = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 2.0
"""How long the last messages may take to leave when the worker ends."""


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
        self._outbox: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
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
        """Queue a message for the listener.

        Raises:
            FrameError: the message cannot be sent; nothing was queued.
        """
        self._outbox.put(encode_frame(message))

    def close(self) -> None:
        """Send what is queued, then close the socket."""
        self._claim_end()
        self._outbox.put(None)
        self._threads[1].join(CLOSE_PATIENCE_S)
        with contextlib.suppress(OSError):  # The listener may have closed first.
            self._sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(CLOSE_PATIENCE_S)
        self._sock.close()

    def _read(self) -> None:
        try:
            for batch in read_batches(self._sock, worker_decoder()):
                for message in batch:
                    self._inbox.put(message)
        except (FrameError, OSError) as error:
            self._listener_gone(error)
        else:
            self._listener_gone(None)

    def _write(self) -> None:
        is_last = False
        while not is_last:
            frames = [self._outbox.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    frames.append(self._outbox.get_nowait())
            is_last = None in frames
            try:
                self._sock.sendall(b"".join(frame for frame in frames if frame is not None))
            except OSError as error:
                self._listener_gone(error)
                return

    def _listener_gone(self, error: Exception | None) -> None:
        if self._claim_end():
            log.warning("listener gone", extra={"error": str(error or "end of file")})
            self._on_closed()

    def _claim_end(self) -> bool:
        """Whether the caller is the first to see the end."""
        with self._end_lock:
            was_ended, self._is_ended = self._is_ended, True
        return not was_ended
