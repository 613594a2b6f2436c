"""A Unix socket to listen on: a stale one is replaced, ours is removed at the end."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from luce.errors import BindError
from luce.listener.bind import BACKLOG

_NOT_FOR_OTHERS = 0o117
"""Owner and group may connect, which on Linux needs the right to write."""
_MAX_PATH_BYTES = 107


@contextlib.contextmanager
def listen_on(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket while the body runs.

    Raises:
        BindError: another server has it, something else is there, or it cannot be made.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise BindError(f"cannot listen on {path}: longer than {_MAX_PATH_BYTES} bytes")
    try:
        _remove_stale(path)
        sock = _bound(path)
        made = path.stat().st_ino
    except OSError as error:
        raise BindError(f"cannot listen on {path}: {error.strerror or error}") from error
    with sock:
        try:
            yield sock
        finally:
            _remove_own(path, made)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that is gone."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BindError(f"cannot listen on {path}: it exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1)
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except TimeoutError:
            raise BindError(f"cannot listen on {path}: {_IN_USE}") from None
        else:
            raise BindError(f"cannot listen on {path}: {_IN_USE}")


_IN_USE = "it is in use; stop the other server or choose another --uds"


def _bound(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_NOT_FOR_OTHERS)
    try:
        sock.bind(str(path))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def _remove_own(path: Path, made: int) -> None:
    """Remove our socket, unless another server's has taken its place."""
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == made:
            path.unlink()
