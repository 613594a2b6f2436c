"""Chunks of text: what is encoded once is the same as what is encoded each time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.listener.dialects.base import ChoiceDialect
from luce.listener.dialects.openai_answer import TextFrame
from luce.listener.dialects.openai_chat import OpenAIChat
from luce.listener.dialects.openai_completions import OpenAICompletions
from luce.text.events import Started, TextDelta

MODEL = 'm"":"" """'
DIALECTS = [
    (OpenAIChat(), {"messages": [{"role": "user", "content": "x"}], "n": 2}),
    (OpenAICompletions(), {"prompt": "x", "n": 2}),
]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text(text: str) -> None:
    framed = TextFrame(b'data: {"model":"","content":"","end":null}\n\n').around(text)
    assert framed.startswith(b"data: ")
    assert framed.endswith(b"\n\n")
    assert json.loads(framed[6:]) == {"model": "", "content": text, "end": None}


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
