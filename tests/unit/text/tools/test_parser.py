"""ToolParser: channels, limits, ids and events."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from luce.text.call import ToolSpec
from luce.text.channels import Channel, TextPiece
from luce.text.events import ToolCallDelta, ToolCallStarted
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.hermes import HERMES
from luce.text.tools.llama3 import LLAMA3
from luce.text.tools.mistral import MISTRAL
from luce.text.tools.parser import CallComplete, CallPlaces, Piece, ToolParser, new_call_id
from luce.text.tools.registry import active_syntaxes
from luce.text.tools.syntax import ToolSyntax

Parse = Callable[..., list[Any]]
CALL = '<tool_call>{"name": "get", "arguments": {"s": "one two"}}</tool_call>'
ONE = ("get", {"s": "one two"})


def parser(*, is_single: bool = False) -> ToolParser:
    return ToolParser(
        active_syntaxes(HERMES),
        DeclaredTools([ToolSpec("get")]),
        is_single=is_single,
        new_id=lambda: "id",
    )


def feed(tools: ToolParser, *texts: str, channel: Channel = "content") -> list[list[Piece]]:
    return [tools.feed(TextPiece(channel, text)) for text in texts]


def test_arguments_are_streamed_and_the_name_comes_once() -> None:
    texts = ['Hi <tool_call>{"name": "get", ', '"arguments": {"s"', ': "one', " two", '"}}', "x"]
    assert feed(parser(), *texts) == [
        [TextPiece("content", "Hi")],
        [],
        [ToolCallStarted(0, "id", "get"), ToolCallDelta(0, '{"s": "one')],
        [ToolCallDelta(0, " two")],
        [ToolCallDelta(0, '"}'), CallComplete()],
        [TextPiece("content", "x")],
    ]


def test_text_is_not_held_longer_than_needed() -> None:
    assert feed(parser(), "a <", "b> ", "c <tool", "box") == [
        [TextPiece("content", "a")],
        [TextPiece("content", " "), TextPiece("content", "<b>")],
        [TextPiece("content", " "), TextPiece("content", "c")],
        [TextPiece("content", " "), TextPiece("content", "<toolbox")],
    ]


def test_whether_it_is_in_a_call() -> None:
    tools = parser()
    states: list[bool] = []
    for text in ["a <tool_call>", '{"name"', ': "get"}', "</tool_call>"]:
        feed(tools, text)
        states.append(tools.in_call)
    assert states == [False, True, False, False]


def test_calls_in_reasoning(parse: Parse) -> None:
    assert parse(f"hm {CALL} so", channel="reasoning") == ["hm", ONE, " so"]
    assert parse("<tool_call><function=get></function>", channel="reasoning") == [("get", {})]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "get", "arguments": {}}',
        "call:get{}",
        "<function=get></function>",
        '<function_call>{"name": "get"}</function_call>',
        "<tool_call> or so",
    ],
)
def test_what_is_no_call_in_reasoning(parse: Parse, text: str) -> None:
    assert parse(text, channel="reasoning") == [text]


def test_the_end_of_reasoning_ends_a_call() -> None:
    tools = parser()
    text = '<tool_call><function=get><parameter=s>"x"'
    assert tools.feed(TextPiece("reasoning", text)) == []
    assert tools.feed(TextPiece("content", "Done")) == [
        ToolCallStarted(0, "id", "get"),
        ToolCallDelta(0, '{"s": "\\"x\\""}'),
        CallComplete(),
        TextPiece("content", "Done"),
    ]


def test_the_end_of_reasoning_gives_back_what_was_no_call() -> None:
    tools = parser()
    assert tools.feed(TextPiece("reasoning", "a <tool_call>\n{")) == [TextPiece("reasoning", "a")]
    pieces = tools.feed(TextPiece("content", '{"name": "get", "arguments": {}}'))
    assert pieces == [
        TextPiece("reasoning", " <tool_call>\n"),
        TextPiece("reasoning", "{"),
        ToolCallStarted(0, "id", "get"),
        ToolCallDelta(0, "{}"),
        CallComplete(),
    ]


def test_only_one_call(parse: Parse) -> None:
    assert parse(CALL + CALL + "more", is_single=True) == [ONE]
    assert parse(f"a {CALL}", is_single=True) == ["a", ONE]


def test_only_one_call_even_if_it_breaks(parse: Parse) -> None:
    broken = CALL.replace('two"}', 'two" oops}')
    assert parse(broken + CALL, is_single=True) == [("get", '{"s": "one two"')]


def test_full_only_when_the_call_has_ended() -> None:
    tools = parser(is_single=True)
    states: list[bool] = []
    for text in (CALL[:-20], CALL[-20:]):
        feed(tools, text)
        states.append(tools.is_full)
    assert states == [False, True]
    assert tools.feed(TextPiece("content", "x")) == []
    assert tools.finish(is_cut=False) == []


def test_white_space_belongs_to_calls(parse: Parse) -> None:
    assert parse(f"a \n\n{CALL}\n \n{CALL}\n\n") == ["a", ONE, ONE]
    assert parse(f"{CALL}\n b \n{CALL}") == [ONE, "\n b", ONE]


def test_closing_tags_that_close_nothing(parse: Parse) -> None:
    assert parse(f"{CALL}</tool_call></function> a </tool_call>") == [ONE, " a </tool_call>"]
    assert parse(f"{CALL}</tool_") == [ONE]


def test_what_stands_between_calls_is_given_back_in_front_of_text(parse: Parse) -> None:
    assert parse(f"{CALL}, and") == [ONE, ", and"]


def test_ids_are_of_one_form_and_differ() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch("call_[0-9a-f]{24}", call_id) for call_id in ids)


def test_each_call_has_its_own_id() -> None:
    tools = ToolParser((HERMES,), DeclaredTools([ToolSpec("get")]))
    pieces = tools.feed(TextPiece("content", CALL + CALL))
    started = [piece for piece in pieces if isinstance(piece, ToolCallStarted)]
    assert [piece.index for piece in started] == [0, 1]
    assert started[0].call_id != started[1].call_id


@pytest.mark.parametrize("name", ["tool_call", "function", "think", "tool_code", "a b", "<", "é"])
def test_tools_with_awkward_names(parse: Parse, name: str) -> None:
    tools = (ToolSpec(name), ToolSpec("get"))
    text = CALL.replace("get", name)
    assert parse(text + CALL, tools=tools) == [(name, {"s": "one two"}), ONE]


def test_a_long_text_in_one_piece(parse: Parse) -> None:
    long = "x" * 10_000
    text = f"{long}{CALL.replace('one', long)}"
    assert parse(text) == [long, ("get", {"s": f"{long} two"})]


class TestForced:
    """Calls that a grammar writes: what merely looks like one is none."""

    @staticmethod
    def read(
        text: str, own: ToolSyntax, *, comes_first: bool = False, channel: Channel = "content"
    ) -> tuple[int, str]:
        parser = ToolParser(
            (own,),
            DeclaredTools([ToolSpec("get")]),
            places=CallPlaces.forced(own, comes_first=comes_first, must_come=False),
        )
        pieces = [*parser.feed(TextPiece(channel, text)), *parser.finish(is_cut=False)]
        calls = sum(isinstance(piece, ToolCallStarted) for piece in pieces)
        return calls, "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))

    CALL = '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'
    BARE = '{"name": "get", "parameters": {}}'

    def test_in_content_only(self) -> None:
        assert self.read(self.CALL, HERMES) == (1, "")
        assert self.read(self.CALL, HERMES, channel="reasoning") == (0, self.CALL)

    def test_before_content_or_behind_it(self) -> None:
        text = f"Well. {self.CALL}"
        assert self.read(text, HERMES) == (1, "Well.")
        assert self.read(text, HERMES, comes_first=True) == (0, text)
        assert self.read(f"{self.CALL}\n{self.CALL}", HERMES, comes_first=True) == (2, "")

    def test_bare_json_is_a_call_of_models_that_were_taught_so(self) -> None:
        assert self.read(self.BARE, LLAMA3) == (1, "")
        assert self.read(self.BARE, HERMES) == (0, self.BARE)

    @pytest.mark.parametrize("own", [HERMES, LLAMA3])
    @pytest.mark.parametrize(
        "text", ["{}", '{"a": 1}', "<get><parameter=a>1</parameter></function>"]
    )
    def test_arguments_alone_and_slips_are_none(self, own: ToolSyntax, text: str) -> None:
        assert self.read(text, own) == (0, text)

    def test_what_closes_a_list_is_part_of_it(self) -> None:
        text = '[TOOL_CALLS] [{"name": "get", "arguments": {}}]'
        assert self.read(text, MISTRAL) == (1, "")
