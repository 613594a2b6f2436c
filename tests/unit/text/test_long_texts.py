"""Texts far longer than any context: refused early, and cut without changing a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.errors import ContextLengthExceeded
from luce.text import tokenizer as tokenizer_module
from luce.text.bundle import TextBundle
from luce.text.call import ChatMessage, GenerationCall

WORDS = "The quick  brown fox, 42 jumps\n over 7 lazy_dogs; naïve 日本 text 9 9.\n"


@pytest.fixture(scope="module")
def bundle(demo_model: Path) -> TextBundle:
    return TextBundle.load(demo_model)


def test_cutting_changes_no_token(bundle: TextBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    text = WORDS * 40
    whole = bundle.tokenizer.encode_with_specials(text)
    monkeypatch.setattr(tokenizer_module, "PORTION_CHARACTERS", 50)
    assert bundle.tokenizer.encode_with_specials(text, limit=len(whole)) == whole


def test_encoding_ends_at_the_limit(bundle: TextBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = bundle.tokenizer._encode

    def count(backend: object, text: str) -> list[int]:
        encoded.append(len(text))
        return encode(backend, text)  # type: ignore[arg-type]

    monkeypatch.setattr(bundle.tokenizer, "_encode", count)
    with pytest.raises(ContextLengthExceeded, match=r"at least \d+ tokens.* at most 8192"):
        bundle.tokenizer.encode_with_specials(WORDS * 10_000, limit=8192)
    assert sum(encoded) < 200_000 < len(WORDS * 10_000)


def test_one_endless_word_is_refused_unread(bundle: TextBundle) -> None:
    call = GenerationCall(model=None, messages=(ChatMessage("user", "x" * 30_000_000),))
    with pytest.raises(ContextLengthExceeded, match=r"at least \d+ tokens"):
        bundle.prepare(call, 8192)


def test_no_limit_counts_to_the_end(bundle: TextBundle) -> None:
    ids = bundle.tokenizer.encode_with_specials(WORDS * 2000)
    assert len(ids) > 8192
