"""Memory of this process as the system counts it."""

from __future__ import annotations

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


def _status_bytes(field: str) -> int | None:
    try:
        text = _STATUS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * _KIB if found else None
