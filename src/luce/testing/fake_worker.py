"""FakeWorker: a worker without a model, scripted; in this process or as one of its own.

In a test: `FakeWorker(script).connect()` gives the listener's end of a socketpair for
`WorkerHandle.connect`. As a process: `python -m luce.testing.fake_worker --script JSON --fd N`,
started like a real worker.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Self

import msgspec

from luce.protocol.messages import Retired, ToWorker
from luce.testing.fake_residency import Transition
from luce.testing.fake_script import FakeScript
from luce.testing.fake_session import Crash, FakeLog, FakeSession, Release, ReleaseControl


class FakeWorker:
    """Runs sessions of a script and records what they saw.

    Thread-safe for a test: the counters are written by the session's thread only.

    Attributes:
        script: the script; replace it between two `connect` calls.
    """

    def __init__(self, script: FakeScript | None = None) -> None:
        self.script = script or FakeScript()
        self._log = FakeLog()
        self._session: FakeSession | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def received(self) -> list[ToWorker]:
        """Every message, in order."""
        return self._log.received

    @property
    def retired(self) -> list[Retired]:
        """Every retirement sent."""
        return self._log.retired

    @property
    def transitions(self) -> list[Transition]:
        """Every evict and reinstate that was asked for, in order."""
        return self._log.transitions

    @property
    def max_in_flight(self) -> int:
        """Most sequences held at the same time."""
        return self._log.max_in_flight

    @property
    def in_flight(self) -> int:
        """Sequences held now."""
        return self._session.in_flight if self._session is not None else 0

    def connect(self) -> socket.socket:
        """Start a session in a thread; the socket is the listener's end. Ends the last one."""
        self.close()
        listener_end, worker_end = socket.socketpair()

        def crash() -> None:
            worker_end.shutdown(socket.SHUT_RDWR)

        self._session = self._new_session(worker_end, crash)
        self._thread = threading.Thread(target=self._session.run, name="fake-worker")
        self._thread.start()
        return listener_end

    def serve(self, sock: socket.socket) -> None:
        """Run a session in this thread, as a whole process: a crash is a SIGKILL."""
        self._session = self._new_session(sock, lambda: os.kill(os.getpid(), signal.SIGKILL))
        self._session.run()

    def release(self, request_id: str | None = None) -> None:
        """Let a held request go on; all of them without an id."""
        self._tell(Release(request_id))

    def release_control(self) -> None:
        """Let a held evict or reinstate go on."""
        self._tell(ReleaseControl())

    def crash(self) -> threading.Thread | None:
        """Die now; the thread that does, in a moment."""
        self._tell(Crash())
        return self._thread

    def close(self) -> None:
        """End the session and wait for its thread."""
        self.abandon()
        self.join()
        self._thread = None

    def abandon(self) -> None:
        """End the session as if the listener had gone."""
        if self._session is not None:
            self._session.abandon()

    def join(self) -> None:
        """Wait for the end of the session."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _new_session(self, sock: socket.socket, crash: Callable[[], None]) -> FakeSession:
        return FakeSession(sock, self.script, self._log, crash)

    def _tell(self, command: Release | ReleaseControl | Crash) -> None:
        if self._session is None:
            raise RuntimeError("the fake worker has not been connected")
        self._session.inbox.put(command)


def main(argv: list[str] | None = None) -> int:
    """Serve one script as a worker process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", default="{}")
    parser.add_argument("--fd", type=int, required=True)
    options = parser.parse_args(argv)
    script = msgspec.json.decode(options.script, type=FakeScript)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if script.ignore_shutdown:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    FakeWorker(script).serve(socket.socket(fileno=options.fd))
    return 0


if __name__ == "__main__":
    sys.exit(main())
