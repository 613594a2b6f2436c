"""Small files that options name: configuration, keys, inventories of devices."""

from __future__ import annotations

import os
from pathlib import Path

MAX_FILE_BYTES = 2**20
"""More than any of them has."""


def read_option_file(path: Path) -> bytes:
    """What is in a file, or in a pipe such as a shell's `<(command)` makes.

    Opening a pipe would wait for somebody to write to it, for ever if nobody does. One without a
    writer is empty here.

    Raises:
        OSError: it cannot be read.
        ValueError: it has more than `MAX_FILE_BYTES`, or there is a NUL in its name.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        os.set_blocking(file.fileno(), True)
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
    return content


def reason_of(error: OSError | ValueError) -> str:
    """Why a file could not be read, without its name, which the message has already."""
    return getattr(error, "strerror", None) or str(error)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
