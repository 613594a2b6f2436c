"""Units: named integers, sizes parsed from and formatted for people."""

from __future__ import annotations

import re
from typing import NewType

Bytes = NewType("Bytes", int)
Tokens = NewType("Tokens", int)
Nanoseconds = NewType("Nanoseconds", int)

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str) -> Bytes:
    """Parse "12GiB", "500 MB" or "4096" into bytes.

    Raises:
        ValueError: the text is not a size, or the unit is unknown.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _FACTORS:
        raise ValueError(f"not a size: {text!r} (examples: 12GiB, 500MB, 4096)")
    return Bytes(int(float(match[1]) * _FACTORS[match[2].lower()]))


def format_bytes(count: int) -> str:
    """Format bytes for people: 98.9 MiB, 1.5 GiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
