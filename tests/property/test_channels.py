"""ChannelSplitter: any cutting of a text gives the same channels."""

from __future__ import annotations

from itertools import groupby, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from luce.text.channels import CHANNEL_SPECS, ChannelSpec, ChannelSplitter, TextPiece

SPECS = st.sampled_from(CHANNEL_SPECS)
CUTS = st.lists(st.integers(0, 200), max_size=10)
ALL_TAGS = sorted({tag for spec in CHANNEL_SPECS for tag in spec.tags})
TEXTS = st.lists(
    st.one_of(
        st.sampled_from([*ALL_TAGS, "<th", "</think", "<|chan", "\n", "\n\n", " ", "word", "[/TH"]),
        st.text("<>/ \nthink|[]é", max_size=5),
    ),
    max_size=10,
).map("".join)


def split(
    text: str, spec: ChannelSpec, *, in_reasoning: bool, cuts: list[int] | None = None
) -> list[tuple[str, str]]:
    """The channels in order, neighbours joined."""
    splitter = ChannelSplitter(spec, in_reasoning=in_reasoning, is_verbatim=lambda: False)
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts or ()), len(text)]
    pieces: list[TextPiece] = []
    for start, end in pairwise(borders):
        pieces += splitter.feed(text[start:end])
    pieces += splitter.flush()
    assert all(piece.text for piece in pieces)
    return [
        (channel, "".join(piece.text for piece in group))
        for channel, group in groupby(pieces, key=lambda piece: piece.channel)
    ]


@settings(max_examples=400)
@given(text=TEXTS, spec=SPECS, in_reasoning=st.booleans(), cuts=CUTS)
def test_cuts_do_not_matter(
    text: str, spec: ChannelSpec, in_reasoning: bool, cuts: list[int]
) -> None:
    whole = split(text, spec, in_reasoning=in_reasoning)
    assert split(text, spec, in_reasoning=in_reasoning, cuts=cuts) == whole
    each = list(range(len(text)))
    assert split(text, spec, in_reasoning=in_reasoning, cuts=each) == whole


def without_tags(text: str, spec: ChannelSpec) -> list[str]:
    """The characters that are neither white space nor part of a tag, nor of tags around tags."""
    # A tag that is text, at the end of a reasoning, loses the white space it ends with.
    tags = {*spec.tags, *(tag.rstrip() for tag in spec.tags)}
    before = ""
    while text != before:
        before = text
        for tag in sorted(tags, key=len, reverse=True):
            text = text.replace(tag, "")
    return [*filter(str.strip, text)]


@given(text=TEXTS, spec=SPECS, in_reasoning=st.booleans())
def test_only_tags_and_white_space_are_left_out(
    text: str, spec: ChannelSpec, in_reasoning: bool
) -> None:
    shown = "".join(part for _, part in split(text, spec, in_reasoning=in_reasoning))
    assert without_tags(shown, spec) == without_tags(text, spec)


@given(text=st.text("ab<>/\n think", max_size=40), spec=SPECS)
def test_content_without_tags_is_untouched(text: str, spec: ChannelSpec) -> None:
    if any(tag in text for tag in spec.tags):
        return
    assert split(text, spec, in_reasoning=False) == ([("content", text)] if text else [])
