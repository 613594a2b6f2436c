"""How a vocabulary writes bytes as text: the two spellings in use and their way back."""

from __future__ import annotations

import re
from enum import Enum

SPACE_MARK = "▁"
"""U+2581, a space in SentencePiece vocabularies."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling(Enum):
    """BYTE_LEVEL: one printable character per byte. SENTENCEPIECE: text, `▁`, `<0xHH>`."""

    BYTE_LEVEL = "byte_level"
    SENTENCEPIECE = "sentencepiece"


def _byte_alphabet() -> dict[str, int]:
    """Character → byte of byte-level vocabularies.

    Source: the GPT-2 vocabulary: printable Latin-1 characters stand for themselves, the other
    bytes for U+0100 onwards, in byte order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + rank): byte for rank, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()


def piece_bytes(piece: str, spelling: Spelling) -> bytes:
    """The UTF-8 fragment one vocabulary entry stands for.

    A byte-level entry with a character outside the alphabet was added as plain text; it stands
    for itself.
    """
    if spelling is Spelling.BYTE_LEVEL:
        try:
            return bytes([_BYTE_OF[character] for character in piece])
        except KeyError:
            return piece.encode()
    byte = _BYTE_TOKEN.fullmatch(piece)
    if byte is not None:
        return bytes.fromhex(byte[1])
    return piece.replace(SPACE_MARK, " ").encode()
