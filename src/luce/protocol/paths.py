"""File names on the wire: any bytes in, the same bytes out.

A name need not be UTF-8, and messages hold nothing else; so each byte travels as one character.
"""

from __future__ import annotations

import os


def path_to_wire(path: str) -> str:
    """The text that stands for `path` in a message; ASCII stays as it is."""
    return os.fsencode(path).decode("latin-1")


def path_from_wire(text: str) -> str:
    """The path that `path_to_wire` was given."""
    return os.fsdecode(text.encode("latin-1"))


def text_to_wire(text: str) -> str:
    """Text for people that may name a file, with `?` for what is no character."""
    return text.encode(errors="replace").decode()
