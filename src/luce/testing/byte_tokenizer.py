"""ByteTokenizer: token id = byte value, so a test can read token ids as text."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class ByteTokenizer:
    """256 tokens; encoding never fails and decoding gives back what was encoded."""

    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of ids 0..255; bytes that are no UTF-8 become U+FFFD."""
        return bytes(token_ids).decode(errors="replace")


def pack_prompt(token_ids: Iterable[int]) -> bytes:
    """Token ids as `Submit.prompt` carries them: int32 little-endian."""
    return b"".join(token.to_bytes(4, "little", signed=True) for token in token_ids)


def unpack_prompt(prompt: bytes) -> list[int]:
    """The inverse of `pack_prompt`, on a little-endian machine."""
    return array("i", prompt).tolist()
