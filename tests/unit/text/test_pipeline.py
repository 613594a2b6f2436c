"""OutputPipeline: events, the end, and what is counted."""

from __future__ import annotations

import pytest

from luce.protocol.sampling import ReasoningBudget
from luce.text.answer import AnswerForm
from luce.text.call import ToolSpec
from luce.text.channels import THINK
from luce.text.detokenizer import Detokenizer
from luce.text.events import (
    CloseKind,
    Finished,
    FinishKind,
    GenEvent,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolCallStarted,
)
from luce.text.pipeline import OutputPipeline
from luce.text.tokenizer import Tokenizer
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.hermes import HERMES
from luce.text.tools.parser import ToolParser

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


class TestReasoningAndCalls:
    CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    STARTED = ToolCallStarted(0, "id", "f")
    ARGUMENTS = ToolCallDelta(0, '{"a": 1}')

    def pipeline(
        self, tokenizer: Tokenizer, *stops: str, single: bool = False, thinking: bool = False
    ) -> OutputPipeline:
        tools = ToolParser(
            (HERMES,), DeclaredTools([ToolSpec("f")]), is_single=single, new_id=lambda: "id"
        )
        form = AnswerForm(THINK, thinking, tools)
        return OutputPipeline(Detokenizer(tokenizer, [IM_END]), stops, prompt_tokens=7, form=form)

    def finished(self, reason: FinishKind, tokens: int, reasoning: int = 0) -> Finished:
        return Finished(reason, TokenUsage(7, 0, tokens, reasoning))

    def test_reasoning_is_counted_with_its_tags(self, tiny: Tokenizer) -> None:
        text = "<think>hm</think>yes"
        events = self.pipeline(tiny).feed(ids(tiny, text), "stop")
        reasoning = len("hm</think>") + 1  # one token completes the opening tag
        assert events == [
            ReasoningDelta("hm"),
            TextDelta("yes"),
            self.finished("stop", len(text) + 1, reasoning),
        ]

    def test_reasoning_that_the_prompt_opened(self, tiny: Tokenizer) -> None:
        events = self.pipeline(tiny, thinking=True).feed(ids(tiny, "hm"), "length")
        assert events == [ReasoningDelta("hm"), self.finished("length", 2, 2)]

    @pytest.mark.parametrize(
        ("text", "finish", "reason"),
        [
            (CALL, "stop", "tool_calls"),
            (CALL, "length", "length"),
            (CALL + CALL[:30], "length", "length"),
            ("plain", "stop", "stop"),
            (CALL.replace("f", "g"), "stop", "stop"),
            (CALL[:48], "length", "length"),
            (CALL.replace("1}}", '"x'), "stop", "stop"),
        ],
    )
    def test_the_reason(
        self, tiny: Tokenizer, text: str, finish: FinishKind, reason: FinishKind
    ) -> None:
        last = self.pipeline(tiny).feed(ids(tiny, text), finish)[-1]
        assert last == self.finished(reason, len(text) + (finish == "stop"))

    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("<think>abc</think>So", "hard"),
            ("<think>ab</think>So", "natural"),
            ("<think></think>So", "natural"),
            ("So, then", "natural"),
            ("<think>a</think>So <think>bc</think>", "natural"),
        ],
    )
    def test_how_reasoning_under_a_budget_ended(
        self, tiny: Tokenizer, text: str, kind: CloseKind
    ) -> None:
        (close, *_) = forced = tuple(ids(tiny, "</think>"))
        budget = ReasoningBudget(len("<think>abc"), False, (), (close,), forced)
        output = OutputPipeline(
            Detokenizer(tiny), (), prompt_tokens=7, form=AnswerForm(THINK), budget=budget
        )
        # Here the worker is played by the text: it puts the tag where the budget ends, or not.
        last = output.feed(ids(tiny, text), "stop")[-1]
        assert isinstance(last, Finished)
        assert last.close_kind == kind

    @pytest.mark.parametrize(
        ("text", "budget_tokens", "shown"),
        [
            ("<think>abc</thi", 10, "abc"),
            ("<think>abc<", 10, "abc"),
            ("<think>ab</th", 13, "ab</th"),
            ("<think>abc<t", 10, "abc<t"),
        ],
    )
    def test_half_of_a_forced_close_is_not_shown(
        self, tiny: Tokenizer, text: str, budget_tokens: int, shown: str
    ) -> None:
        forced = tuple(ids(tiny, "</think>"))
        budget = ReasoningBudget(budget_tokens, False, (), forced, forced)
        output = OutputPipeline(
            Detokenizer(tiny), (), prompt_tokens=7, form=AnswerForm(THINK), budget=budget
        )
        assert output.feed(ids(tiny, text), "length")[0] == ReasoningDelta(shown)

    def test_without_a_budget_nobody_says_how_it_ended(self, tiny: Tokenizer) -> None:
        last = self.pipeline(tiny).feed(ids(tiny, "<think>a</think>"), "stop")[-1]
        assert isinstance(last, Finished)
        assert last.close_kind is None

    def test_one_call_ends_the_generation(self, tiny: Tokenizer) -> None:
        output = self.pipeline(tiny, single=True)
        events: list[GenEvent] = []
        for token_id in ids(tiny, self.CALL):
            events += output.feed([token_id])
        assert events[0] == self.STARTED
        assert output.stopped
        # The closing tag behind the call is not waited for.
        assert events[-1] == self.finished("tool_calls", len(self.CALL) - len("</tool_call>"))
        assert output.feed(ids(tiny, self.CALL), "stop") == []

    def test_a_stop_string_behind_a_call(self, tiny: Tokenizer) -> None:
        text = f"{self.CALL} STOP and"
        events = self.pipeline(tiny, "STOP").feed(ids(tiny, text))
        end = Finished("tool_calls", TokenUsage(7, 0, len(text) - 4), "STOP")
        assert events == [self.STARTED, self.ARGUMENTS, TextDelta(" "), end]


@pytest.mark.parametrize("stops", [(), ("no such text",)])
def test_plain_answers_take_a_short_way_to_the_same_events(
    tiny: Tokenizer, stops: tuple[str, ...]
) -> None:
    # With a stop string that never comes, the long way.
    output = pipeline(tiny, *stops)
    text = "a\u00e9 \u20ac"
    tokens = ids(tiny, text)
    events = [output.feed([token]) for token in tokens]
    shown = "".join(event.text for batch in events for event in batch)  # type: ignore[union-attr]
    assert shown == text
    assert [len(batch) for batch in events] == [1, 0, 1, 1, 0, 0, 1]
    assert output.usage == usage(len(tokens))
    assert output.feed(ids(tiny, "b"), "length") == [
        TextDelta("b"),
        Finished("length", usage(len(tokens) + 1)),
    ]
    assert output.feed(ids(tiny, "c")) == []


def test_a_character_cut_off_by_the_end_is_not_shown(tiny: Tokenizer) -> None:
    output = pipeline(tiny)
    assert output.feed(ids(tiny, "\u20ac")[:2]) == []
    assert output.feed([], "length") == [Finished("length", usage(2))]
