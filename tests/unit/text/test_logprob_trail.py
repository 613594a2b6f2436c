"""Which tokens are reported with the content, and when."""

from __future__ import annotations

import pytest

from luce.protocol.sampling import TokenLogprobs
from luce.text.answer import AnswerForm
from luce.text.call import ToolSpec
from luce.text.channels import THINK
from luce.text.detokenizer import Detokenizer
from luce.text.events import ContentLogprob, Finished, GenEvent, ReasoningDelta, TextDelta
from luce.text.logprob_trail import LogprobTrail
from luce.text.pipeline import OutputPipeline
from luce.text.tokenizer import Tokenizer
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.hermes import HERMES
from luce.text.tools.parser import ToolParser

IM_START, IM_END = 1, 2


def pipeline(
    tokenizer: Tokenizer, *stops: str, marked: bool = False, voiced: tuple[int, ...] = ()
) -> OutputPipeline:
    form = AnswerForm(reports_logprobs=True)
    if marked:
        tools = ToolParser((HERMES,), DeclaredTools([ToolSpec("f")]), new_id=lambda: "id")
        form = AnswerForm(THINK, False, tools, reports_logprobs=True)
    detokenizer = Detokenizer(tokenizer, [IM_END], voiced)
    return OutputPipeline(detokenizer, stops, prompt_tokens=7, form=form)


def ids(tokenizer: Tokenizer, text: str | bytes) -> list[int]:
    """One token per byte."""
    data = text.encode() if isinstance(text, str) else text
    by_bytes = {tokenizer.token_bytes(index): index for index in range(3, 259)}
    return [by_bytes[bytes([byte])] for byte in data]


def feed(output: OutputPipeline, token_ids: list[int], finish: str | None = None) -> list[GenEvent]:
    """Every token with the logarithm -1, and none beside it."""
    numbers = [TokenLogprobs(-1.0)] * len(token_ids)
    return output.feed(token_ids, finish, numbers)  # type: ignore[arg-type]


def delta(text: str, *tokens: bytes) -> TextDelta:
    return TextDelta(text, tuple(ContentLogprob(token, -1.0) for token in tokens))


def bytewise(text: str) -> TextDelta:
    return delta(text, *(bytes([byte]) for byte in text.encode()))


def test_numbers_and_alternatives(tiny: Tokenizer) -> None:
    (capital,) = tiny.encode(" capital")
    numbers = TokenLogprobs(-0.5, (capital, IM_END, IM_START), (-0.5, -1.5, float("-inf")))
    (event,) = pipeline(tiny).feed([capital], None, [numbers])
    top = ((b" capital", -0.5), (b"<|im_end|>", -1.5), (b"<|im_start|>", float("-inf")))
    assert event == TextDelta(" capital", (ContentLogprob(b" capital", -0.5, top),))


def test_nothing_is_reported_unasked(tiny: Tokenizer) -> None:
    output = OutputPipeline(Detokenizer(tiny), [], prompt_tokens=1)
    assert output.feed(ids(tiny, "ab"), None, [TokenLogprobs(-1.0)] * 2) == [TextDelta("ab")]


def test_nothing_to_report(tiny: Tokenizer) -> None:
    assert pipeline(tiny).feed(ids(tiny, "ab")) == [TextDelta("ab")]


def test_the_tokens_of_a_character_come_with_it(tiny: Tokenizer) -> None:
    output = pipeline(tiny)
    first, second, third = ids(tiny, "€")
    assert feed(output, [*ids(tiny, "a"), first]) == [bytewise("a")]
    assert feed(output, [second]) == []
    assert feed(output, [third]) == [delta("€", b"\xe2", b"\x82", b"\xac")]


def test_a_character_cut_off_by_the_length_is_not_reported(tiny: Tokenizer) -> None:
    *events, last = feed(pipeline(tiny), ids(tiny, "a€")[:-1], "length")
    assert events == [bytewise("a")]
    assert isinstance(last, Finished)


def test_bytes_that_are_no_character(tiny: Tokenizer) -> None:
    output = pipeline(tiny)
    events = feed(output, ids(tiny, b"a\xe2b"))
    assert events == [delta("a\ufffdb", b"a", b"\xe2", b"b")]


def test_text_held_for_a_stop_string_holds_its_tokens(tiny: Tokenizer) -> None:
    output = pipeline(tiny, "END")
    assert feed(output, ids(tiny, "x EN")) == [bytewise("x ")]
    assert feed(output, [], "stop")[0] == bytewise("EN")


def test_a_stop_string_takes_its_tokens_along(tiny: Tokenizer) -> None:
    output = pipeline(tiny, "END")
    events = feed(output, ids(tiny, "x ENDed"))
    assert events[0] == bytewise("x ")
    assert isinstance(events[1], Finished)


def test_a_token_cut_by_a_stop_string_is_not_reported(tiny: Tokenizer) -> None:
    (capital,) = tiny.encode(" capital")
    assert feed(pipeline(tiny, "pit"), [*ids(tiny, "x"), capital])[0] == delta("x ca", b"x")


def test_a_token_that_may_be_cut_waits_with_its_text(tiny: Tokenizer) -> None:
    (capital,) = tiny.encode(" capital")
    output = pipeline(tiny, "als")
    assert feed(output, [capital]) == []  # " capit" alone would be half a token
    assert feed(output, ids(tiny, "!")) == [delta(" capital!", b" capital", b"!")]
    output = pipeline(tiny, "als")
    feed(output, [capital])
    assert feed(output, ids(tiny, "s"))[0] == TextDelta(" capit")


def test_reasoning_and_calls_have_none(tiny: Tokenizer) -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    text = f"<think>hm</think>\nSo.\n{call}"
    events = feed(pipeline(tiny, marked=True), ids(tiny, text), "stop")
    assert events[:2] == [ReasoningDelta("hm"), bytewise("So.")]
    assert not any(isinstance(event, TextDelta) for event in events[2:])


def test_a_token_whose_white_space_is_left_out_is_reported(tiny: Tokenizer) -> None:
    class Joined(Detokenizer):
        """Token 0 is `So.` and a line end."""

        def feed(self, token_ids: object) -> str:
            assert isinstance(token_ids, tuple)
            return "So.\n" if token_ids == (0,) else super().feed(token_ids)

        def token_bytes(self, token_id: int) -> bytes:
            return b"So.\n" if token_id == 0 else super().token_bytes(token_id)

    tools = ToolParser((HERMES,), DeclaredTools([ToolSpec("f")]), new_id=lambda: "id")
    form = AnswerForm(THINK, False, tools, reports_logprobs=True)
    output = OutputPipeline(Joined(tiny), [], prompt_tokens=1, form=form)
    assert feed(output, [0]) == []
    events = feed(output, ids(tiny, '<tool_call>{"name": "f", "arguments": {}}'))
    assert events[0] == delta("So.", b"So.\n")


def test_text_that_was_no_call_after_all(tiny: Tokenizer) -> None:
    output = pipeline(tiny, marked=True)
    assert feed(output, ids(tiny, "a <tool_call>")) == [bytewise("a")]
    assert feed(output, ids(tiny, "!")) == [bytewise(" <tool_call>!")]


@pytest.mark.parametrize("voiced", [(), (IM_START,)])
def test_control_tokens(tiny: Tokenizer, voiced: tuple[int, ...]) -> None:
    output = pipeline(tiny, voiced=voiced)
    events = feed(output, [*ids(tiny, "a"), IM_START, IM_END, *ids(tiny, "b")])
    if voiced:
        assert events == [delta("a<|im_start|>b", b"a", b"<|im_start|>", b"b")]
    else:
        assert events == [bytewise("ab")]


def test_reasoning_costs_no_memory_and_no_reports(tiny: Tokenizer) -> None:
    described: list[int] = []

    def describe(token_id: int, numbers: TokenLogprobs) -> ContentLogprob:
        described.append(token_id)
        return ContentLogprob(b"", numbers.logprob)

    output = pipeline(tiny, marked=True)
    trail = output._trail
    assert isinstance(trail, LogprobTrail)
    trail._describe = describe
    feed(output, ids(tiny, "<think>" + "hm " * 1000))
    assert len(trail._tokens) < 20
    feed(output, ids(tiny, "</think>yes"))
    assert described == ids(tiny, "yes")
