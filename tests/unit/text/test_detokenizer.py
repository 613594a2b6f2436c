"""Detokenizer: text in whole characters, whatever the portions."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from luce.text.detokenizer import Detokenizer
from luce.text.tokenizer import Tokenizer


def bytes_ids(data: bytes, tokenizer: Tokenizer) -> list[int]:
    """One token per byte, so that every border inside a character occurs."""
    by_bytes = {tokenizer.token_bytes(index): index for index in range(3, 259)}
    return [by_bytes[bytes([byte])] for byte in data]


def test_half_a_character_is_held(tiny: Tokenizer) -> None:
    detokenizer = Detokenizer(tiny)
    ids = bytes_ids("😀é".encode(), tiny)
    assert [detokenizer.feed([index]) for index in ids] == ["", "", "", "😀", "", "é"]


def test_control_tokens_make_no_text(tiny: Tokenizer) -> None:
    detokenizer = Detokenizer(tiny)
    first, second = bytes_ids("é".encode(), tiny)
    assert detokenizer.feed([1, first, 2, second, 0]) == "é"


def test_silent_ids_make_no_text(tiny: Tokenizer) -> None:
    a, b = bytes_ids(b"ab", tiny)
    assert Detokenizer(tiny, [a]).feed([a, b, a]) == "b"


def test_ids_beyond_the_vocabulary_make_no_text(tiny: Tokenizer) -> None:
    assert Detokenizer(tiny).feed([tiny.vocab_size + 5, *bytes_ids(b"x", tiny)]) == "x"


def test_a_character_cut_off_at_the_end_is_dropped(tiny: Tokenizer) -> None:
    detokenizer = Detokenizer(tiny)
    assert detokenizer.feed(bytes_ids("a😀".encode()[:-1], tiny)) == "a"
    detokenizer.flush()
    assert detokenizer.feed(bytes_ids(b"b", tiny)) == "b"


def test_bytes_that_are_no_utf_8_are_marked_as_in_the_reference(tiny: Tokenizer) -> None:
    data = b"a\xffb\xe6\x97c"
    assert Detokenizer(tiny).feed(bytes_ids(data, tiny)) == data.decode(errors="replace")


@given(data=st.binary(max_size=30), cuts=st.lists(st.integers(0, 30)))
def test_portions_do_not_matter(tiny: Tokenizer, data: bytes, cuts: list[int]) -> None:
    ids = bytes_ids(data, tiny)
    borders = [0, *sorted(cuts), len(ids)]
    detokenizer = Detokenizer(tiny)
    parts = [detokenizer.feed(ids[start:end]) for start, end in pairwise(borders)]
    assert "".join(parts) == Detokenizer(tiny).feed(ids)


class TestSentencePiece:
    def test_the_first_space_is_taken_off(self, spm: Tokenizer) -> None:
        ids = spm.encode("hello world")
        assert Detokenizer(spm).feed(ids) == "hello world"
        detokenizer = Detokenizer(spm)
        assert [detokenizer.feed([index]) for index in ids] == ["hello", " world"]

    def test_only_one_space_and_only_at_the_beginning(self, spm: Tokenizer) -> None:
        assert Detokenizer(spm).feed(spm.encode("  hello  world")) == "  hello  world"

    def test_control_tokens_are_no_beginning(self, spm: Tokenizer) -> None:
        detokenizer = Detokenizer(spm)
        assert detokenizer.feed([1]) == ""
        assert detokenizer.feed(spm.encode("hello")) == "hello"

    def test_byte_tokens(self, spm: Tokenizer) -> None:
        assert Detokenizer(spm).feed(spm.encode("é\n日")) == "é\n日"


def test_control_tokens_that_are_wanted_make_text(tiny: Tokenizer) -> None:
    start, end = (tiny.control_id(text) for text in ("<|im_start|>", "<|im_end|>"))
    assert start is not None
    assert end is not None
    detokenizer = Detokenizer(tiny, [end], [start, end])
    assert detokenizer.feed([start, *tiny.encode("a"), end]) == "<|im_start|>a"
