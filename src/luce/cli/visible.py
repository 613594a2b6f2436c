"""Makes text from outside fit for one line of a terminal."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """The text on one line, with what a terminal would obey or hide written as an escape.

    Names and paths may hold anything: sequences that move the cursor, marks that turn the
    direction of writing, bytes that are no text at all.
    """
    return "".join(map(_visible_character, " ".join(text.splitlines())))


def _visible_character(character: str) -> str:
    if character == "\t":
        return " "
    if unicodedata.category(character).startswith(("C", "Zl", "Zp")):
        return character.encode("unicode_escape").decode("ascii")
    return character
