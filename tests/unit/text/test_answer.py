"""Answer: reasoning, content, calls and stop strings together."""

from __future__ import annotations

import re

import pytest

from luce.text.answer import Answer, AnswerForm
from luce.text.call import ToolSpec
from luce.text.channels import THINK
from luce.text.events import GenEvent, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStarted
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.hermes import HERMES
from luce.text.tools.parser import CallPlaces, ToolParser
from luce.text.tools.registry import active_syntaxes

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "STOP"}}\n</tool_call>'
STARTED = ToolCallStarted(0, "id", "f")
ARGUMENTS = ToolCallDelta(0, '{"a": "STOP"}')


def answer(*stops: str, in_reasoning: bool = False, is_single: bool = False) -> Answer:
    tools = ToolParser(
        active_syntaxes(HERMES),
        DeclaredTools([ToolSpec("f")]),
        is_single=is_single,
        new_id=lambda: "id",
    )
    return Answer(stops, AnswerForm(THINK, in_reasoning, tools))


def read(reader: Answer, text: str, *, is_cut: bool = False) -> list[GenEvent]:
    for piece in re.findall(r"\w+|\W", text):
        reader.feed(piece)
    if not reader.is_over:
        reader.finish(is_cut=is_cut)
    return reader.take_events()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<thi", []),
        ("<think>hm</thi", [ReasoningDelta("hm</thi")]),
        ("<think>hm</think>\n\n<tool_", [ReasoningDelta("hm")]),
        ('<think>hm</think>\n\n<tool_call>\n{"na', [ReasoningDelta("hm")]),
        (CALL.replace("STOP", "<").partition('"}}')[0], [STARTED, ToolCallDelta(0, '{"a": "<')]),
    ],
)
def test_a_call_that_must_come_and_is_cut_off(text: str, shown: list[GenEvent]) -> None:
    places = CallPlaces.forced(HERMES, comes_first=False, must_come=True)
    tools = ToolParser(
        (HERMES,), DeclaredTools([ToolSpec("f")]), places=places, new_id=lambda: "id"
    )
    form = AnswerForm(THINK, tools=tools, reasons_once=True)
    assert read(Answer((), form), text, is_cut=True) == shown


def test_reasoning_then_content_then_a_call() -> None:
    reader = answer()
    assert read(reader, f"<think>\nhm\n</think>\n\nSo.\n{CALL}") == [
        ReasoningDelta("hm"),
        TextDelta("So."),
        STARTED,
        ARGUMENTS,
    ]
    assert reader.has_calls
    assert not reader.is_over


def test_only_text_when_nothing_else_is_looked_for() -> None:
    text = f"<think>a</think>{CALL}"
    assert read(Answer((), AnswerForm()), text) == [TextDelta(text)]


def test_where_it_is() -> None:
    reader = answer(in_reasoning=True)
    assert reader.in_reasoning
    reader.feed("hm</think>")
    assert not reader.in_reasoning


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a STOP b</think>c", [ReasoningDelta("a ")]),
        ("<think>a</think>b STOP c", [ReasoningDelta("a"), TextDelta("b ")]),
        (f"STOP{CALL}", []),
        (f"x STO{CALL}", [TextDelta("x STO"), STARTED, ARGUMENTS]),
        (f"{CALL}\nSTOP", [STARTED, ARGUMENTS, TextDelta("\n")]),
        ("<think>x ST</think>OP", [ReasoningDelta("x ST"), TextDelta("OP")]),
        ("<tool_call> a STOP", [TextDelta("<tool_call> a ")]),
        ("<tool_call>\nSTO", [TextDelta("<tool_call>\nSTO")]),
    ],
)
def test_stop_strings_in_what_a_client_sees(text: str, expected: list[GenEvent]) -> None:
    reader = answer("STOP")
    assert read(reader, text) == expected
    assert reader.stop_string == (None if "STOP" not in _shown(text) else "STOP")


def _shown(text: str) -> str:
    return text.replace(CALL, "").replace("</think>", "|")


@pytest.mark.parametrize("stop", ["think", "</think>", "<tool_call>", "tool", "name"])
def test_tags_and_calls_match_no_stop_string(stop: str) -> None:
    reader = answer(stop)
    assert read(reader, f"<think>a</think>b{CALL}") == [
        ReasoningDelta("a"),
        TextDelta("b"),
        STARTED,
        ARGUMENTS,
    ]
    assert reader.stop_string is None


def test_a_call_behind_a_stop_string_does_not_count() -> None:
    reader = answer("STOP")
    reader.feed(f"a STOP {CALL}")
    assert reader.take_events() == [TextDelta("a ")]
    assert reader.is_over
    assert not reader.has_calls


def test_one_call_and_no_more() -> None:
    reader = answer(is_single=True)
    assert read(reader, f"{CALL}{CALL}") == [STARTED, ARGUMENTS]
    assert reader.is_over
    assert reader.has_calls


def test_tags_in_arguments_are_text() -> None:
    text = CALL.replace("STOP", "<think>\\n</think>")
    assert read(answer(), text) == [STARTED, ToolCallDelta(0, '{"a": "<think>\\n</think>"}')]


def test_tags_behind_a_call_do_not_depend_on_how_the_text_was_cut() -> None:
    text = f"<function=f><parameter=a><think>{CALL}\n\n<think>hm</think>"
    for pieces in ([text], list(text)):
        reader = answer()
        for piece in pieces:
            reader.feed(piece)
        reader.finish(is_cut=False)
        assert reader.take_events()[-1] == ReasoningDelta("hm")


@pytest.mark.parametrize("cut", [16, 30, 60, 65, 70])
def test_white_space_in_a_call_of_reasoning_that_is_cut_off_by_the_tag(cut: int) -> None:
    text = 'hm <tool_call>\n{"name": "f", "arguments": {"a": "x </think>So'
    whole = answer(in_reasoning=True)
    whole.feed(text)
    parts = answer(in_reasoning=True)
    for piece in (text[:cut], text[cut:]):
        parts.feed(piece)
    assert parts.take_events() == whole.take_events()


def test_a_call_in_reasoning() -> None:
    assert read(answer(in_reasoning=True), f"hm\n{CALL}\n</think>\nSo") == [
        ReasoningDelta("hm"),
        STARTED,
        ARGUMENTS,
        TextDelta("So"),
    ]


def test_a_call_that_never_ends_before_its_reasoning_does() -> None:
    text = "<think>maybe <tool_call>\n<function=f or so</think>Answer"
    assert read(answer(), text) == [
        ReasoningDelta("maybe <tool_call>\n<function=f or so"),
        TextDelta("Answer"),
    ]


def test_cut_off() -> None:
    reader = answer()
    text = '<tool_call>{"name": "f", "arguments": {"a": "one tw'
    assert read(reader, text, is_cut=True) == [STARTED, ToolCallDelta(0, '{"a": "one tw')]
    assert not reader.has_calls
