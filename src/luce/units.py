"""Sizes and values of others, as people write and read them."""

from __future__ import annotations

import re

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MOST_DIGITS = 24
_SIZE = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,6}))? ?([KMGT]i?B?|B)?", re.IGNORECASE)


def format_bytes(count: int) -> str:
    """Format bytes for people: 98.9 MiB, 1.5 GiB."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if abs(value) < 1024:
            return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def cut(text: str, most: int = 64) -> str:
    """A text of others for a message of ours: its beginning, marked if there is more."""
    return text if len(text) <= most else f"{text[:most]}…"


def cut_number(value: float) -> str:
    """The same of a number: no more digits than anybody reads."""
    return cut(str(value), _MOST_DIGITS)


def quoted(text: str, most: int = 64) -> str:
    """A text of others as `cut` has it, in quotes."""
    return repr(cut(text, most))


def parse_bytes(text: str) -> int:
    """Read a size: 512MiB, 1.5GiB, 24G; a bare number is bytes. All units are powers of 1024.

    Raises:
        ValueError: it is none.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size; write one as 512MiB or 1.5GiB")
    whole, fraction, unit = match.groups()
    scale = 1 << 10 * "BKMGT".index((unit or "B")[0].upper())
    digits = fraction or "0"
    return int(whole) * scale + int(digits) * scale // int("1" + "0" * len(digits))
