"""A vocabulary as grammars see it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from luce.protocol.frames import MAX_FRAME_BYTES, encode_frame
from luce.protocol.messages import Vocabulary
from luce.testing import tiny_tokenizer
from luce.testing.tiny_models import tiny_llama
from luce.text.bundle import TextBundle
from luce.text.vocabulary import token_vocabulary


def bundle(tmp_path: Path) -> TextBundle:
    return TextBundle.load(tiny_llama(tmp_path))


def test_tokens_are_the_bytes_they_stand_for(tmp_path: Path) -> None:
    text = bundle(tmp_path)
    found = text.vocabulary()
    assert len(found.tokens) == text.vocab_size
    ids = text.tokenizer.encode("What is the capital of é?")
    assert b"".join(found.tokens[i] for i in ids).decode() == "What is the capital of é?"
    assert sorted(found.tokens[3:259]) == [bytes([byte]) for byte in range(256)]


def test_control_and_end_tokens_are_named(tmp_path: Path) -> None:
    text = bundle(tmp_path)
    found = text.vocabulary()
    assert found.control_ids == (0, 1, 2)
    assert [found.tokens[i].decode() for i in found.control_ids] == list(
        tiny_tokenizer.SPECIAL_TOKENS
    )
    assert found.end_ids == text.stop_token_ids
    assert found.end_ids


def test_ids_behind_the_tokenizers_have_no_text(tmp_path: Path) -> None:
    tokenizer = bundle(tmp_path).tokenizer
    found = token_vocabulary(tokenizer, (2, 9999), tokenizer.vocab_size + 5)
    assert found.tokens[-5:] == [b""] * 5
    assert found.tokens[tokenizer.vocab_size - 1] != b""
    assert found.end_ids == (2,)


def test_ids_behind_the_models_are_left_out(tmp_path: Path) -> None:
    found = token_vocabulary(bundle(tmp_path).tokenizer, (2, 0), 2)
    assert len(found.tokens) == 2
    assert found.control_ids == (0, 1)
    assert found.end_ids == (0,)


def test_the_largest_vocabularies_fit_a_frame() -> None:
    tokens = [b"%16d" % number for number in range(280_000)]
    frame = encode_frame(Vocabulary(tokens, list(range(5000)), [1]))
    assert len(frame) < MAX_FRAME_BYTES / 2
    assert msgspec.msgpack.decode(frame[4:], type=Vocabulary).tokens[-1] == tokens[-1]
