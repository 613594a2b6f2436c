"""Sizes, formatted for people."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """Format bytes for people: 98.9 MiB, 1.5 GiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
