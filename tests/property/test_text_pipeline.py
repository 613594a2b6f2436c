"""Any cutting of a generation's tokens gives the same text, end and count."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from luce.testing.tiny_tokenizer import IM_END_ID, MERGES, TOKENS
from luce.text.answer import AnswerForm
from luce.text.call import ToolSpec
from luce.text.channels import THINK
from luce.text.detokenizer import Detokenizer
from luce.text.events import (
    Finished,
    FinishKind,
    GenEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from luce.text.gguf_vocab import build_tokenizer
from luce.text.pipeline import OutputPipeline
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.hermes import HERMES
from luce.text.tools.parser import ToolParser
from luce.text.tools.registry import active_syntaxes

TOKENIZER = build_tokenizer(
    {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": TOKENS,
        "merges": [f"{left} {right}" for left, right in MERGES],
        "eos_token_id": IM_END_ID,
    }
)
BY_BYTES = {TOKENIZER.token_bytes(index): index for index in range(3, 259)}

TEXTS = st.text(st.sampled_from("ab the€😀\n"), max_size=40)
STOPS = st.lists(st.text("ab the€😀\n", min_size=1, max_size=5), max_size=4)
FINISHES = st.sampled_from(["stop", "length"])
CUTS = st.lists(st.integers(0, 80), max_size=8)


def run(
    ids: list[int], stops: list[str], finish: FinishKind, cuts: list[int]
) -> tuple[str, Finished]:
    """Feed in portions, the last of which says that it is the last."""
    pipeline = OutputPipeline(
        Detokenizer(TOKENIZER, [IM_END_ID]), stops, prompt_tokens=1, cached_tokens=0
    )
    borders = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    portions = [ids[start:end] for start, end in pairwise(borders)]
    events: list[GenEvent] = []
    for index, portion in enumerate(portions):
        events += pipeline.feed(portion, finish if index == len(portions) - 1 else None)
    *deltas, last = events
    assert isinstance(last, Finished)
    assert all(isinstance(delta, TextDelta) and delta.text for delta in deltas)
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)), last


def token_lists(text: str, by_byte: bool) -> list[int]:
    return [BY_BYTES[bytes([b])] for b in text.encode()] if by_byte else TOKENIZER.encode(text)


@given(text=TEXTS, by_byte=st.booleans(), stops=STOPS, finish=FINISHES, cuts=CUTS)
def test_portions_do_not_matter(
    text: str, by_byte: bool, stops: list[str], finish: FinishKind, cuts: list[int]
) -> None:
    ids = token_lists(text, by_byte)
    assert run(ids, stops, finish, cuts) == run(ids, stops, finish, [])


@given(text=TEXTS, by_byte=st.booleans(), stops=STOPS, finish=FINISHES, cuts=CUTS)
def test_what_comes_out(
    text: str, by_byte: bool, stops: list[str], finish: FinishKind, cuts: list[int]
) -> None:
    ids = token_lists(text, by_byte)
    shown, last = run(ids, stops, finish, cuts)
    assert text.startswith(shown)
    assert "\ufffd" not in shown
    assert not any(stop in shown for stop in stops)
    if last.stop_string is None:
        assert (shown, last.reason) == (text, finish)
        assert last.usage.completion_tokens == len(ids) + (finish == "stop")
    else:
        assert last.reason == "stop"
        assert text.startswith(shown + last.stop_string)
        kept = b"".join(map(TOKENIZER.token_bytes, ids[: last.usage.completion_tokens]))
        before = b"".join(map(TOKENIZER.token_bytes, ids[: last.usage.completion_tokens - 1]))
        end = len((shown + last.stop_string).encode())
        assert len(before) < end <= len(kept)


@given(data=st.binary(max_size=40), stops=STOPS, cuts=CUTS, end=st.booleans())
def test_any_bytes_at_all(data: bytes, stops: list[str], cuts: list[int], end: bool) -> None:
    ids = [BY_BYTES[bytes([byte])] for byte in data] + [IM_END_ID] * end
    once = run(ids, stops, "length", [])
    assert run(ids, stops, "length", cuts) == once
    assert data.decode(errors="replace").startswith(once[0])


MARKED_TEXTS = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<tool_call>",
            '{"name": "f", "arguments": {"a": "é',
            '"}}',
            "</tool_call>",
            "<function=f><parameter=a>",
            "</parameter></function>",
            " \n",
            "ab the",
            "€",
        ]
    ),
    max_size=9,
).map("".join)


def run_marked(
    ids: list[int], stops: list[str], finish: FinishKind, cuts: list[int], single: bool
) -> list[GenEvent]:
    """All events with reasoning and a tool, neighbours of one kind joined."""
    tools = ToolParser(
        active_syntaxes(HERMES),
        DeclaredTools([ToolSpec("f")]),
        is_single=single,
        new_id=lambda: "id",
    )
    form = AnswerForm(THINK, False, tools)
    pipeline = OutputPipeline(Detokenizer(TOKENIZER), stops, prompt_tokens=1, form=form)
    borders = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    portions = [ids[start:end] for start, end in pairwise(borders)]
    events: list[GenEvent] = []
    for index, portion in enumerate(portions):
        for event in pipeline.feed(portion, finish if index == len(portions) - 1 else None):
            last = events.pop() if events else None
            if isinstance(event, TextDelta) and isinstance(last, TextDelta):
                events.append(TextDelta(last.text + event.text))
            elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
                events.append(ReasoningDelta(last.text + event.text))
            elif isinstance(event, ToolCallDelta) and isinstance(last, ToolCallDelta):
                events.append(ToolCallDelta(last.index, last.arguments + event.arguments))
            else:
                events += [event] if last is None else [last, event]
    return events


@given(
    text=MARKED_TEXTS,
    stops=st.lists(st.sampled_from(["ab", "e<", "é", "\n", "</"]), max_size=2),
    finish=FINISHES,
    cuts=CUTS,
    single=st.booleans(),
)
def test_portions_do_not_matter_for_reasoning_and_calls(
    text: str, stops: list[str], finish: FinishKind, cuts: list[int], single: bool
) -> None:
    ids = token_lists(text, by_byte=True)
    whole = run_marked(ids, stops, finish, [], single)
    assert run_marked(ids, stops, finish, cuts, single) == whole
    assert [event for event in whole if isinstance(event, Finished)] == whole[-1:]
    usage = whole[-1].usage if isinstance(whole[-1], Finished) else None
    assert usage is not None
    assert usage.reasoning_tokens <= usage.completion_tokens <= len(ids) + 1
