"""The shared expression finds what a plain search for each text finds."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from luce.text.markup_pattern import markup_pattern


def longest_first(texts: list[str], text: str) -> list[str]:
    found: list[str] = []
    position = 0
    while position < len(text):
        here = [each for each in texts if text.startswith(each, position)]
        found += [max(here, key=len)] if here else []
        position += len(found[-1]) if here else 1
    return found


@given(
    texts=st.lists(st.text("<|ab>[.", min_size=1, max_size=5), max_size=6),
    text=st.text("<|ab>[.", max_size=30),
)
def test_finds_the_longest_at_each_place(texts: list[str], text: str) -> None:
    assert markup_pattern(texts).findall(text) == longest_first(texts, text)


def test_nothing_to_find() -> None:
    assert markup_pattern([]).split("a<b>") == ["a<b>"]
    assert markup_pattern([""]).search("a") is None


def test_many_texts_with_one_beginning_are_quick() -> None:
    pattern = markup_pattern(f"<|reserved_special_token_{index}|>" for index in range(1000))
    started = time.process_time()
    assert pattern.search("<|reserved_special_token_x" * 20_000) is None
    assert time.process_time() - started < 5
    assert pattern.findall("<|reserved_special_token_12|>") == ["<|reserved_special_token_12|>"]
