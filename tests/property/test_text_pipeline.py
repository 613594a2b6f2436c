"""Any cutting of a generation's tokens gives the same text, end and count."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from luce.testing.tiny_tokenizer import IM_END_ID, MERGES, TOKENS
from luce.text.detokenizer import Detokenizer
from luce.text.events import Finished, FinishKind, GenEvent, TextDelta
from luce.text.gguf_vocab import build_tokenizer
from luce.text.pipeline import OutputPipeline

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
