"""Chunks of text: what is encoded once is the same as what is encoded each time."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from luce.listener.dialects import openai_completions_wire as completions_wire
from luce.listener.dialects import openai_wire as wire
from luce.listener.dialects.base import ChoiceDialect
from luce.listener.dialects.openai_answer import TextFrame
from luce.listener.dialects.openai_chat import OpenAIChat
from luce.listener.dialects.openai_completions import OpenAICompletions
from luce.text.events import Started, TextDelta

MODEL = 'm"":"" """'
DIALECTS: list[tuple[ChoiceDialect, dict[str, Any]]] = [
    (OpenAIChat(), {"messages": [{"role": "user", "content": "x"}], "n": 2}),
    (OpenAICompletions(), {"prompt": "x", "n": 2}),
]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text(text: str) -> None:
    framed = TextFrame(b'data: {"model":"","content":"","end":null}\n\n').around(text)
    assert framed.startswith(b"data: ")
    assert framed.endswith(b"\n\n")
    assert json.loads(framed[6:]) == {"model": "", "content": text, "end": None}


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
@example(texts=['"\\\x00\x1f\x7f\u2028\ufeff\U0001f389""\n\n', '""', "</script>\ud7ff\ue000"])
def test_a_chat_s_bytes_are_those_of_the_general_encoder(texts: list[str]) -> None:
    dialect, body = DIALECTS[0]
    encoder = dialect.stream_encoder(dialect.decode(json.dumps(body).encode()))
    (start,) = data_of(encoder.encode(Started(MODEL, 0), 0).decode())
    for index in (0, 1):
        for text in texts:
            choice = wire.ChunkChoice(index=index, delta=wire.Delta(content=text))
            chunk = wire.Chunk(
                id=start["id"], created=start["created"], model=MODEL, choices=[choice]
            )
            expected = b"data: " + msgspec.json.encode(chunk) + b"\n\n"
            assert encoder.encode(TextDelta(text), index) == expected


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_a_completion_s_bytes_are_those_of_the_general_encoder(texts: list[str]) -> None:
    dialect, body = DIALECTS[1]
    encoder = dialect.stream_encoder(dialect.decode(json.dumps(body).encode()))
    encoder.encode(Started(MODEL, 0), 0)
    for index in (0, 1):
        for text in texts:
            written = encoder.encode(TextDelta(text), index)
            (head,) = data_of(written.decode())
            chunk = completions_wire.TextChunk(
                id=head["id"],
                created=head["created"],
                model=MODEL,
                choices=[completions_wire.TextChoice(text=text, index=index)],
            )
            assert written == b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def data_of(frames: str) -> list[Any]:
    return [json.loads(each.removeprefix("data: ")) for each in frames.split("\n\n") if each]


@pytest.mark.parametrize(("dialect", "request_body"), DIALECTS)
def test_only_the_text_differs_from_chunk_to_chunk(
    dialect: ChoiceDialect, request_body: dict[str, Any]
) -> None:
    encoder = dialect.stream_encoder(dialect.decode(json.dumps(request_body).encode()))
    encoder.encode(Started(MODEL, 0), 0)
    for choice in (0, 1):
        first, second = (
            json.loads(encoder.encode(TextDelta(text), choice)[6:]) for text in ('"a"', "b")
        )
        assert first["model"] == MODEL
        assert first["choices"][0]["index"] == choice
        text_of = first["choices"][0].get("delta", first["choices"][0])
        key = "content" if "content" in text_of else "text"
        assert text_of[key] == '"a"'
        text_of[key] = "b"
        assert first == second
