"""Tool calls and reasoning: any cutting of a text gives the same events, in linear time."""

from __future__ import annotations

import itertools
import json
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.text.answer import Answer, AnswerForm
from luce.text.call import ToolSpec
from luce.text.channels import GEMMA as GEMMA_CHANNELS
from luce.text.channels import THINK, ChannelSpec, TextPiece
from luce.text.events import GenEvent, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStarted
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.deepseek import DEEPSEEK
from luce.text.tools.gemma import GEMMA
from luce.text.tools.hermes import HERMES
from luce.text.tools.llama3 import LLAMA3
from luce.text.tools.mistral import MISTRAL
from luce.text.tools.parser import CallComplete, ToolParser
from luce.text.tools.registry import active_syntaxes
from luce.text.tools.syntax import ToolSyntax

TOOLS = DeclaredTools(
    [
        ToolSpec(
            "add",
            parameters={
                "type": "object",
                "properties": {"a": {"type": "integer"}, "s": {"type": "string"}},
            },
        ),
        ToolSpec("get"),
    ]
)
SYNTAXES = (HERMES, MISTRAL, DEEPSEEK, GEMMA, LLAMA3)
OWN = st.sampled_from(SYNTAXES)
CHANNELS = st.sampled_from([None, THINK, GEMMA_CHANNELS])

# Whole calls, their parts, and what looks like them.
FRAGMENTS = [
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "s": "<think>x"}}\n</tool_call>',
    "<tool_call>",
    "</tool_call>",
    '{"name": "add", "arguments": ',
    '{"name": "get", "parameters": {}}',
    '"{\\"a\\": 1}"',
    '{\'a\': True, b: [1, 2,], "s": "\\u00e9\\n',
    "<function=add>",
    "<function=add><parameter=a>1</parameter><parameter=s>\ntwo\n</parameter></function>",
    "<parameter=s>",
    "</parameter>",
    "</function>",
    "<add><parameter=s>",
    "<function get>",
    '<invoke name="add"><parameter name="s">v</parameter></invoke>',
    "<function_calls>",
    "</function_calls>",
    "add<arg_key>a</arg_key><arg_value>5</arg_value>",
    'add(a=1, s="x")',
    'call:add{a:1,s:<|"|>q"{<|"|>}',
    "<|tool_call>",
    "<tool_call|>",
    "[TOOL_CALLS]",
    '[{"name": "add", "arguments": {"a": 1}}, ',
    'add[ARGS]{"a": 1}',
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n",
    "```<｜tool▁call▁end｜>",
    '<|python_tag|>{"name": "add", "parameters": {"a": 1}}; ',
    "<think>",
    "</think>",
    "<|channel>thought\n",
    "<channel|>",
    "add",
    "missing",
    '"',
    "{",
    "}",
    "}}",
    "[",
    "]",
    "\n",
    "  ",
    "text",
    "<",
    "\\",
    ",",
]
TEXTS = st.lists(
    st.one_of(st.sampled_from(FRAGMENTS), st.text("a<>/_tcl{}\"' \n", max_size=4)), max_size=9
).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=12)


def events_of(
    text: str,
    own: ToolSyntax,
    *,
    channels: ChannelSpec | None = None,
    cuts: list[int] | None = None,
    is_cut: bool = False,
    stops: tuple[str, ...] = (),
    is_single: bool = False,
) -> list[GenEvent]:
    """All events of an answer, neighbours joined."""
    ids = map("call_{}".format, itertools.count())
    tools = ToolParser(active_syntaxes(own), TOOLS, is_single=is_single, new_id=lambda: next(ids))
    answer = Answer(stops, AnswerForm(channels, False, tools))
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts or ()), len(text)]
    for start, end in pairwise(borders):
        answer.feed(text[start:end])
    answer.finish(is_cut=is_cut)
    return answer.take_events()


@settings(max_examples=400)
@given(text=TEXTS, own=OWN, channels=CHANNELS, cuts=CUTS, is_cut=st.booleans())
def test_cuts_do_not_matter(
    text: str, own: ToolSyntax, channels: ChannelSpec | None, cuts: list[int], is_cut: bool
) -> None:
    whole = events_of(text, own, channels=channels, is_cut=is_cut)
    assert events_of(text, own, channels=channels, is_cut=is_cut, cuts=cuts) == whole
    each = list(range(len(text)))
    assert events_of(text, own, channels=channels, is_cut=is_cut, cuts=each) == whole


@settings(max_examples=300)
@given(text=TEXTS, own=OWN, channels=CHANNELS, is_single=st.booleans())
def test_what_comes_out_is_well_formed(
    text: str, own: ToolSyntax, channels: ChannelSpec | None, is_single: bool
) -> None:
    events = events_of(text, own, channels=channels, is_single=is_single)
    calls: list[str] = []
    for event in events:
        if isinstance(event, ToolCallStarted):
            assert event.index == len(calls)
            assert event.name in TOOLS.names
            calls.append("")
        elif isinstance(event, ToolCallDelta):
            assert event.index == len(calls) - 1
            assert event.arguments
            calls[-1] += event.arguments
        else:
            assert isinstance(event, TextDelta | ReasoningDelta)
            assert event.text
    assert len(calls) <= 1 or not is_single
    for arguments in calls:
        assert arguments.startswith("{")


@settings(max_examples=300)
@given(text=TEXTS, own=OWN, is_cut=st.booleans())
def test_complete_calls_have_valid_arguments(text: str, own: ToolSyntax, is_cut: bool) -> None:
    parser = ToolParser(active_syntaxes(own), TOOLS)
    pieces = parser.feed(TextPiece("content", text)) if text else []
    arguments = ""
    for piece in [*pieces, *parser.finish(is_cut=is_cut)]:
        if isinstance(piece, ToolCallStarted):
            arguments = ""
        elif isinstance(piece, ToolCallDelta):
            arguments += piece.arguments
        elif isinstance(piece, CallComplete):
            assert isinstance(json.loads(arguments), dict)


@given(text=st.text("ab <>{}[]\"'\n:,=", max_size=60), own=OWN)
def test_text_without_calls_is_untouched(text: str, own: ToolSyntax) -> None:
    assert events_of(text, own) == ([TextDelta(text)] if text else [])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(
    arguments=st.dictionaries(st.text(max_size=5), VALUES, max_size=4),
    cuts=CUTS,
    ascii_only=st.booleans(),
)
def test_arguments_in_json_are_kept(
    arguments: dict[str, object], cuts: list[int], ascii_only: bool
) -> None:
    written = json.dumps({"name": "add", "arguments": arguments}, ensure_ascii=ascii_only)
    events = events_of(f"<tool_call>\n{written}\n</tool_call>", HERMES, cuts=cuts)
    assert isinstance(events[0], ToolCallStarted)
    assert isinstance(events[1], ToolCallDelta)
    assert json.loads(events[1].arguments) == arguments
    assert len(events) == 2


ADVERSARIES = [
    "<",
    "<tool_call>",
    "<tool_call>{",
    '<tool_call>{"name": "add", "arguments": {"a": 1}}',
    '<tool_call>{"name": "add", "arguments": {"s": "<tool_call>',
    "<function=add>",
    "<function=add><parameter=s>",
    "<function=add><parameter=s></function>",
    "<tool_call>add<arg_key>a</arg_key><arg_value>",
    'call:add{s:<|"|>',
    "[",
    "{a:[",
    " \n",
    "</think>",
]


@pytest.mark.parametrize("unit", ADVERSARIES)
@pytest.mark.parametrize("size", [5, 300_000])
def test_time_is_linear(unit: str, size: int) -> None:
    text = (unit * (300_000 // len(unit) + 1))[:300_000]
    started = time.process_time()
    events_of(text, MISTRAL, channels=THINK, cuts=list(range(0, len(text), size)))
    # Less than a second on a slow machine; in quadratic time it would be minutes.
    assert time.process_time() - started < 10
