"""Log probabilities in the form of OpenAI's legacy completions: four lists of equal length."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from luce.listener.dialects.logprobs import json_logprob
from luce.text.events import ContentLogprob


class TextLogprobs(msgspec.Struct):
    """The tokens of a choice, or of the piece of it that a chunk adds.

    Attributes:
        tokens: their texts; `bytes:` and hexadecimal escapes where that is no whole character.
        token_logprobs: how likely they were.
        top_logprobs: the likeliest tokens in each place, and the one that was taken.
        text_offset: where each begins in the choice's text, in characters.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]

    def extend(self, more: TextLogprobs) -> None:
        """Append the next piece."""
        self.tokens += more.tokens
        self.token_logprobs += more.token_logprobs
        self.top_logprobs += more.top_logprobs
        self.text_offset += more.text_offset


class LogprobWriter:
    """The tokens of one choice, piece by piece; knows how far its text has come."""

    def __init__(self) -> None:
        self._offset = 0

    def write(self, text: str, entries: Sequence[ContentLogprob]) -> TextLogprobs:
        """The next piece.

        Args:
            text: the text.
            entries: its tokens.
        """
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        ends = list(accumulate(len(decode(entry.token)) for entry in entries))
        # White space that a token begins with is left out where the text begins.
        num_lost = max(0, ends[-1] - len(text)) if ends else 0
        starts = [max(0, end - num_lost) for end in (0, *ends[:-1])] if ends else []
        piece = TextLogprobs(
            [_text(entry.token) for entry in entries],
            [json_logprob(entry.logprob) for entry in entries],
            [_top(entry) for entry in entries],
            [self._offset + start for start in starts],
        )
        self._offset += len(text)
        return piece


def _top(entry: ContentLogprob) -> dict[str, float]:
    """Of tokens with the same text the likelier one counts."""
    top: dict[str, float] = {}
    for token, value in (*entry.top, (entry.token, entry.logprob)):
        top.setdefault(_text(token), json_logprob(value))
    return top


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
