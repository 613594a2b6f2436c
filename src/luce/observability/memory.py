"""Memory of this process: as the system counts it, and what can be given back."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

_STATUS = Path("/proc/self/status")
_KIB = 1024


def resident_bytes() -> int | None:
    """Resident bytes now; None where there is no /proc."""
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int | None:
    """Most resident bytes so far; None where there is no /proc."""
    return _status_bytes("VmHWM")


def trim_heap() -> None:
    """Give back what the C library keeps of freed memory; nothing where it has no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status_bytes(field: str) -> int | None:
    try:
        text = _STATUS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * _KIB if found else None
