"""Bytes of vocabulary entries."""

from __future__ import annotations

import pytest

from luce.testing.tiny_tokenizer import byte_characters
from luce.text.spelling import Spelling, piece_bytes


def test_every_byte_has_its_character() -> None:
    spelled = "".join(byte_characters())
    assert piece_bytes(spelled, Spelling.BYTE_LEVEL) == bytes(range(256))


@pytest.mark.parametrize(
    ("piece", "spelling", "expected"),
    [
        ("Ġthe", Spelling.BYTE_LEVEL, b" the"),
        ("Ċ", Spelling.BYTE_LEVEL, b"\n"),
        ("æĹ", Spelling.BYTE_LEVEL, b"\xe6\x97"),
        ("日本", Spelling.BYTE_LEVEL, "日本".encode()),
        ("▁the", Spelling.SENTENCEPIECE, b" the"),
        ("a▁▁b", Spelling.SENTENCEPIECE, b"a  b"),
        ("<0x0A>", Spelling.SENTENCEPIECE, b"\n"),
        ("<0xE6>", Spelling.SENTENCEPIECE, b"\xe6"),
        ("<0xE6>x", Spelling.SENTENCEPIECE, b"<0xE6>x"),
        ("日", Spelling.SENTENCEPIECE, "日".encode()),
    ],
)
def test_piece_bytes(piece: str, spelling: Spelling, expected: bytes) -> None:
    assert piece_bytes(piece, spelling) == expected
