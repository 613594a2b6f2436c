"""StopMatcher against the plain definition: cut at the stop string that is complete first."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from luce.text.stop import StopMatcher


def run(stops: list[str], *parts: str) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = [matcher.feed(part) for part in parts]
    return [*shown, matcher.flush()], matcher.matched


def by_definition(stops: list[str], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("stops", "parts", "shown", "matched"),
    [
        (["beta gam"], ["alpha be", "ta g", "amma"], ["alpha ", "", "", ""], "beta gam"),
        (["beta gam"], ["alpha be", "ta x"], ["alpha ", "beta x", ""], None),
        (["END"], ["x E", "N"], ["x ", "", "EN"], None),
        (["END"], ["END"], ["", ""], "END"),
        (["END"], ["aENDb", "c"], ["a", "", ""], "END"),
        (["aab"], ["aaa", "ab"], ["a", "a", ""], "aab"),
        (["abcd", "bc"], ["ab", "c"], ["", "a", ""], "bc"),
        (["bc", "abc"], ["xab", "c"], ["x", "", ""], "abc"),
        (["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", "", ""], "\n\n"),
        (["]", "^", "-", "\\", "[["], ["a", "b[", "x-"], ["a", "b", "[x", ""], "-"),
        (["日本"], ["は日", "本"], ["は", "", ""], "日本"),
        ([], ["anything"], ["anything", ""], None),
    ],
)
def test_examples(
    stops: list[str], parts: list[str], shown: list[str], matched: str | None
) -> None:
    assert run(stops, *parts) == (shown, matched)


SMALL = st.text("ab[", max_size=30)


@given(
    stops=st.lists(st.text("ab[", min_size=1, max_size=6), max_size=16),
    text=SMALL,
    cuts=st.lists(st.integers(0, 30)),
)
@example(stops=["abab", "bab"], text="aabab", cuts=[3])
def test_any_cutting_gives_the_text_up_to_the_first_stop(
    stops: list[str], text: str, cuts: list[int]
) -> None:
    borders = [0, *sorted(cuts), len(text)]
    parts = [text[start:end] for start, end in pairwise(borders)]
    shown, matched = run(stops, *parts)
    expected, expected_stop = by_definition(stops, text)
    assert ("".join(shown), matched) == (expected, expected_stop)
    assert not any(stop in "".join(shown) for stop in stops)


@given(stop=st.text("ab", min_size=1, max_size=8), text=SMALL)
def test_no_more_is_held_back_than_may_be_a_stop(stop: str, text: str) -> None:
    matcher = StopMatcher([stop])
    shown = "".join(matcher.feed(character) for character in text)
    if matcher.matched is None:
        held = matcher.flush()
        assert shown + held == text
        longest = max(size for size in range(len(stop)) if text.endswith(stop[:size]))
        assert len(held) == longest


def test_long_stop_strings_take_linear_time() -> None:
    length = 100_000
    matcher = StopMatcher(["a" * length + "b", "a" * length + "c"])
    started = time.process_time()
    total = sum(len(matcher.feed("a" * 4)) for _ in range(length // 2))
    assert total == length
    assert time.process_time() - started < 10
