"""Log probabilities: each token of the content once, whatever the cutting of text and steps."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from luce.protocol.sampling import TokenLogprobs
from luce.text.answer import AnswerForm
from luce.text.call import ToolSpec
from luce.text.channels import THINK
from luce.text.detokenizer import Detokenizer
from luce.text.events import ContentLogprob, Finished, FinishKind, GenEvent, TextDelta
from luce.text.pipeline import OutputPipeline
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.hermes import HERMES
from luce.text.tools.parser import ToolParser
from luce.text.tools.registry import active_syntaxes

FINISHES = st.sampled_from(["stop", "length"])
CUTS = st.lists(st.integers(0, 200), max_size=8)


class PieceTokenizer:
    """Every token id is an index into a list of byte strings: tokens may end anywhere."""

    special_ids: frozenset[int] = frozenset()
    leading_space = False

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]


def piece_detokenizer(pieces: list[bytes]) -> Detokenizer:
    return Detokenizer(PieceTokenizer(pieces))  # type: ignore[arg-type]


def pieces_of(text: str, borders: list[int]) -> list[bytes]:
    """The bytes of a text, cut into tokens."""
    data = text.encode()
    ends = sorted({0, *(min(border, len(data)) for border in borders), len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


def run(
    pieces: list[bytes],
    cuts: list[int],
    stops: list[str] | None = None,
    finish: FinishKind = "stop",
    *,
    marked: bool = False,
) -> list[GenEvent]:
    """All events; the logarithm of token i is -i, so that it can be told."""
    tools = ToolParser(active_syntaxes(HERMES), DeclaredTools([ToolSpec("f")]), new_id=lambda: "id")
    form = AnswerForm(reports_logprobs=True)
    if marked:
        form = AnswerForm(THINK, False, tools, reports_logprobs=True)
    pipeline = OutputPipeline(piece_detokenizer(pieces), stops or (), prompt_tokens=1, form=form)
    borders = [0, *sorted(min(cut, len(pieces)) for cut in cuts), len(pieces)]
    events: list[GenEvent] = []
    for start, end in pairwise(borders):
        ids = list(range(start, end))
        numbers = [TokenLogprobs(-float(i), (i,), (-float(i),)) for i in ids]
        events += pipeline.feed(ids, finish if end == borders[-1] else None, numbers)
        if isinstance(events[-1] if events else None, Finished):
            break
    return events


def content(events: list[GenEvent]) -> tuple[str, list[ContentLogprob]]:
    deltas = [event for event in events if isinstance(event, TextDelta)]
    return "".join(d.text for d in deltas), [entry for d in deltas for entry in d.logprobs]


def ids_of(entries: list[ContentLogprob]) -> list[int]:
    return [int(-entry.logprob) for entry in entries]


PLAIN = st.text("ab the€😀\n", max_size=30)
BORDERS = st.lists(st.integers(0, 90), max_size=40)


@given(text=PLAIN, borders=BORDERS, cuts=CUTS, finish=FINISHES)
def test_plain_text_is_its_tokens(
    text: str, borders: list[int], cuts: list[int], finish: FinishKind
) -> None:
    pieces = pieces_of(text, borders)
    events = run(pieces, cuts, finish=finish)
    shown, entries = content(events)
    assert shown == text
    assert b"".join(entry.token for entry in entries) == text.encode()
    assert [entry.token for entry in entries] == pieces
    assert all(entry.top == ((entry.token, entry.logprob),) for entry in entries)
    text_so_far, tokens_so_far = "", b""
    for event in events[:-1]:
        assert isinstance(event, TextDelta)
        text_so_far += event.text
        tokens_so_far += b"".join(entry.token for entry in event.logprobs)
        # Neither comes before the other, so a client may show them side by side.
        assert tokens_so_far == text_so_far.encode()


@given(
    text=PLAIN,
    borders=BORDERS,
    cuts=CUTS,
    stops=st.lists(st.text("ab the€\n", min_size=1, max_size=4), max_size=3),
)
def test_a_stop_string_cuts_tokens_off(
    text: str, borders: list[int], cuts: list[int], stops: list[str]
) -> None:
    pieces = pieces_of(text, borders)
    shown, entries = content(run(pieces, cuts, stops))
    whole = shown.encode()
    expected, at = [], 0
    for piece in pieces:
        at += len(piece)
        if at <= len(whole):
            expected.append(piece)
    assert text.startswith(shown)
    assert [entry.token for entry in entries] == expected


@given(data=st.binary(max_size=30), cuts=CUTS, size=st.integers(1, 3))
def test_any_bytes_at_all(data: bytes, cuts: list[int], size: int) -> None:
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    shown, entries = content(run(pieces, cuts, finish="length"))
    assert content(run(pieces, [], finish="length")) == (shown, entries)
    ids = ids_of(entries)
    assert ids == list(range(len(ids)))
    # Only a character that was cut off at the end can be missing.
    assert len(b"".join(pieces[len(ids) :])) < 4


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
FRAGMENTS = [
    "<think>",
    "</think>",
    "<think>\nhm.\n</think>\n",
    CALL,
    f"word\n{CALL}",
    f"{CALL}\n\n",
    "<tool_call>",
    "<tool_call>\nword",
    '{"name": "g", "arguments": {}}',
    '{"name": "f", "arguments": {"a": 1',
    "<function=f><parameter=a>",
    " \n",
    "\n",
    " ",
    "€",
    "a word",
    "[",
    "</tool",
]
MARKED = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)


@settings(max_examples=500)
@given(text=MARKED, cuts=CUTS, finish=FINISHES)
def test_with_one_token_a_byte_the_content_is_its_tokens(
    text: str, cuts: list[int], finish: FinishKind
) -> None:
    pieces = pieces_of(text, list(range(len(text.encode()))))
    shown, entries = content(run(pieces, cuts, finish=finish, marked=True))
    assert b"".join(entry.token for entry in entries) == shown.encode()
    ids = ids_of(entries)
    assert ids == sorted(set(ids))


@settings(max_examples=500)
@given(text=MARKED, borders=st.lists(st.integers(0, 300), max_size=30), cuts=CUTS, finish=FINISHES)
def test_a_token_is_reported_if_any_of_it_is_content(
    text: str, borders: list[int], cuts: list[int], finish: FinishKind
) -> None:
    size = len(text.encode())
    shown, single = content(run(pieces_of(text, list(range(size))), [], finish=finish, marked=True))
    of_content = set(ids_of(single))  # one token a byte
    pieces = pieces_of(text, borders)
    events = run(pieces, cuts, finish=finish, marked=True)
    expected, at = [], 0
    for index, piece in enumerate(pieces):
        if of_content.intersection(range(at, at + len(piece))):
            expected.append(index)
        at += len(piece)
    assert content(events)[0] == shown
    # A token that begins or ends inside a character has part in it.
    reported = ids_of(content(events)[1])
    assert set(expected) == {i for i in reported if i in expected}
    assert all(not _is_whole(pieces[i]) for i in set(reported) - set(expected))
    assert reported == sorted(set(reported))


def _is_whole(piece: bytes) -> bool:
    return piece.decode("utf-8", "replace").encode() == piece


@given(
    text=MARKED,
    borders=st.lists(st.integers(0, 200), max_size=40),
    cuts=CUTS,
    stops=st.lists(st.sampled_from(["\n", "word", " a", "<f", "e>", "\n\n"]), max_size=2),
)
def test_with_stop_strings_portions_do_not_matter(
    text: str, borders: list[int], cuts: list[int], stops: list[str]
) -> None:
    pieces = pieces_of(text, borders)
    each = list(range(len(pieces)))
    events = run(pieces, each, stops, marked=True)
    whole = content(run(pieces, [], stops, marked=True))
    assert content(run(pieces, cuts, stops, marked=True)) == whole
    assert content(events) == whole
    assert all(event.text for event in events if isinstance(event, TextDelta))
