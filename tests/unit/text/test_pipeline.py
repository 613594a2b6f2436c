"""OutputPipeline: events, the end, and what is counted."""

from __future__ import annotations

import pytest

from luce.text.detokenizer import Detokenizer
from luce.text.events import Finished, FinishKind, TextDelta, TokenUsage
from luce.text.pipeline import OutputPipeline
from luce.text.tokenizer import Tokenizer

IM_END = 2


def pipeline(tokenizer: Tokenizer, *stops: str) -> OutputPipeline:
    return OutputPipeline(Detokenizer(tokenizer, [IM_END]), stops, prompt_tokens=7, cached_tokens=4)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token per byte."""
    by_bytes = {tokenizer.token_bytes(index): index for index in range(3, 259)}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


def usage(completion_tokens: int) -> TokenUsage:
    return TokenUsage(7, 4, completion_tokens)


def test_the_end_token_is_counted_and_makes_no_text(tiny: Tokenizer) -> None:
    output = pipeline(tiny)
    assert output.feed(ids(tiny, "ab")) == [TextDelta("ab")]
    assert output.feed([], "stop") == [Finished("stop", usage(3))]
    assert output.finished
    assert not output.stopped


@pytest.mark.parametrize(("reason", "counted"), [("stop", 3), ("length", 2)])
def test_the_reason_is_the_workers(tiny: Tokenizer, reason: FinishKind, counted: int) -> None:
    events = pipeline(tiny).feed(ids(tiny, "ab"), reason)
    assert events == [TextDelta("ab"), Finished(reason, usage(counted))]


def test_nothing_to_show_gives_no_event(tiny: Tokenizer) -> None:
    output = pipeline(tiny)
    assert output.feed([]) == []
    assert output.feed(ids(tiny, "é")[:1]) == []
    assert output.feed([], "length") == [Finished("length", usage(1))]


def test_a_stop_string_ends_it_and_overshoot_is_not_counted(tiny: Tokenizer) -> None:
    output = pipeline(tiny, "b c", "zz")
    assert output.feed(ids(tiny, "ab ")) == [TextDelta("a")]
    assert (output.stopped, output.finished) == (False, False)
    assert output.feed(ids(tiny, "cdef")) == [Finished("stop", usage(4), "b c")]
    assert (output.stopped, output.finished) == (True, True)
    assert output.feed(ids(tiny, "more"), "length") == []
    assert output.usage == usage(4)


def test_a_stop_string_wins_over_the_length(tiny: Tokenizer) -> None:
    events = pipeline(tiny, "b").feed(ids(tiny, "ab"), "length")
    assert events == [TextDelta("a"), Finished("stop", usage(2), "b")]


def test_text_held_for_a_stop_string_comes_at_the_end(tiny: Tokenizer) -> None:
    output = pipeline(tiny, "END")
    assert output.feed(ids(tiny, "x EN")) == [TextDelta("x ")]
    assert output.feed([], "stop") == [TextDelta("EN"), Finished("stop", usage(5))]


def test_a_character_cut_off_by_the_length_is_dropped(tiny: Tokenizer) -> None:
    events = pipeline(tiny).feed(ids(tiny, "a😀")[:-1], "length")
    assert events == [TextDelta("a"), Finished("length", usage(4))]


def test_end_tokens_inside_when_they_are_ignored(tiny: Tokenizer) -> None:
    events = pipeline(tiny).feed([*ids(tiny, "a"), IM_END, *ids(tiny, "b")], "length")
    assert events == [TextDelta("ab"), Finished("length", usage(3))]


def test_a_stop_string_in_the_text_of_one_token(tiny: Tokenizer) -> None:
    (token,) = tiny.encode(" capital")
    output = pipeline(tiny, "pit")
    assert output.feed([token, token]) == [TextDelta(" ca"), Finished("stop", usage(1), "pit")]
