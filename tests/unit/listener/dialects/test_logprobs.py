from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.listener.dialects.logprobs import LOWEST, json_logprob, token_logprobs
from luce.listener.dialects.openai_completions_logprobs import LogprobWriter, TextLogprobs
from luce.text.events import ContentLogprob

SMILE = "😀".encode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-0.5, -0.5),
        (0.0, 0.0),
        (1e-7, 0.0),
        (-math.inf, LOWEST),
        (math.nan, LOWEST),
        (math.inf, 0.0),
        (-1e9, LOWEST),
    ],
)
def test_every_number_is_json(value: float, expected: float) -> None:
    assert json_logprob(value) == expected


def test_bytes_are_exact_and_texts_are_whole_characters() -> None:
    entry = ContentLogprob(SMILE[:2], -0.5, ((SMILE[:2], -0.5), (b" a", -math.inf)))
    (written,) = json.loads(msgspec.json.encode(token_logprobs([entry])))
    assert written == {
        "token": "\ufffd",
        "logprob": -0.5,
        "bytes": [0xF0, 0x9F],
        "top_logprobs": [
            {"token": "\ufffd", "logprob": -0.5, "bytes": [0xF0, 0x9F]},
            {"token": " a", "logprob": -9999.0, "bytes": [32, 97]},
        ],
    }


# --- the form of legacy completions ------------------------------------------------------


def entries(*tokens: bytes) -> list[ContentLogprob]:
    return [ContentLogprob(token, -1.0) for token in tokens]


def test_halves_of_a_character_begin_where_it_does() -> None:
    writer = LogprobWriter()
    written = writer.write("é😀!", entries("é".encode(), SMILE[:1], SMILE[1:3], SMILE[3:] + b"!"))
    assert written.tokens == ["é", "bytes:\\xf0", "bytes:\\x9f\\x98", "bytes:\\x80\\x21"]
    assert written.text_offset == [0, 1, 1, 1]
    assert writer.write("x", entries(b"x")).text_offset == [3]


def test_white_space_that_the_text_does_not_begin_with() -> None:
    writer = LogprobWriter()
    assert writer.write("the sky", entries(b" the", b" sky")).text_offset == [0, 3]
    assert writer.write(" is", entries(b" is")).text_offset == [7]


def test_text_without_its_token_counts() -> None:
    writer = LogprobWriter()
    assert writer.write("abc", entries(b"a")).text_offset == [0]
    assert writer.write("", []).text_offset == []
    assert writer.write("d", entries(b"d")).text_offset == [3]


def test_the_token_that_was_taken_is_among_the_likeliest() -> None:
    top = ((b"a", -0.1), (b"\xf0", -2.0), (b"\xf1", -3.0))
    taken = ContentLogprob(b"z", -math.inf, top)
    (written,) = LogprobWriter().write("z", [taken]).top_logprobs
    assert written == {"a": -0.1, "bytes:\\xf0": -2.0, "bytes:\\xf1": -3.0, "z": -9999.0}
    (alone,) = LogprobWriter().write("z", [ContentLogprob(b"z", -1.5)]).top_logprobs
    assert alone == {"z": -1.5}


@given(st.text(max_size=12), st.data())
def test_any_split_of_a_text_has_the_same_lists(text: str, data: st.DataObject) -> None:
    """Tokens are cut anywhere, pieces where a token ends with a character."""
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(raw) - 1)))))
    ends = [cut for cut in cuts if cut < len(raw)] + [len(raw)]
    whole, pieces = LogprobWriter(), LogprobWriter()
    all_at_once: list[ContentLogprob] = []
    joined = TextLogprobs([], [], [], [])
    pending, start, begun = entries(), 0, 0
    for end in ends:
        pending += entries(raw[start:end])
        start = end
        try:
            piece = raw[begun:end].decode()
        except UnicodeDecodeError:
            continue
        joined.extend(pieces.write(piece, pending))
        all_at_once += pending
        pending, begun = [], end
    assert joined == whole.write(text, all_at_once)
    for token, offset in zip(joined.tokens, joined.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert text[offset:].startswith(token)
