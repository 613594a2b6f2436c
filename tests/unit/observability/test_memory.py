from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from luce.observability import memory

# In a process of its own: this one may have had, and given back, more than is asked for here.
_GROW = """
from luce.observability import memory
before = memory.resident_bytes()
ballast = bytearray(64 * 2**20)
ballast[:: 2**12] = b"x" * len(ballast[:: 2**12])
print(before, memory.resident_bytes(), memory.peak_resident_bytes())
"""

# Small pieces, each below the size from which the C library maps memory: what lies under a piece
# that is kept stays with it when the others are freed.
_TRIM = """
import ctypes
from luce.observability import memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(2**16) for _ in range(1000)]
for piece in pieces:
    ctypes.memset(piece, 1, 2**16)
for piece in pieces[:-1]:
    libc.free(piece)
before = memory.resident_bytes()
memory.trim_heap()
print(before - memory.resident_bytes())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library")
def test_what_was_freed_is_given_back() -> None:
    command = [sys.executable, "-c", _TRIM]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(result.stdout) > 48 * 2**20


def test_a_large_allocation_shows() -> None:
    if memory.resident_bytes() is None:
        pytest.skip("no /proc here")
    command = [sys.executable, "-c", _GROW]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    before, after, peak = map(int, result.stdout.split())
    assert after - before > 48 * 2**20
    assert peak >= after - 2**20


def test_without_proc_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    assert memory.resident_bytes() is None
    assert memory.peak_resident_bytes() is None


def test_kib_become_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmHWM:\t    20 kB\nVmRSS:\t    10 kB\n")
    monkeypatch.setattr(memory, "_STATUS", status)
    assert memory.resident_bytes() == 10 * 1024
    assert memory.peak_resident_bytes() == 20 * 1024
