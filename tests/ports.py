"""Ports for programs that must be told one before they listen."""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _PER_PROCESS = 21_000, 1_000
_NEXT = itertools.count()


def free_port() -> int:
    """One that nobody else takes until it is used.

    It lies below those that the kernel gives to whoever asks for any, among those that only this
    test process takes.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for _ in range(_PER_PROCESS):
        port = _FIRST + worker % 10 * _PER_PROCESS + (os.getpid() + next(_NEXT)) % _PER_PROCESS
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("every port of this test process is taken")
