"""Log probabilities of answers, in the form of OpenAI's chat and Responses."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from luce.text.events import ContentLogprob

MAX_TOP_LOGPROBS = 20
"""Most alternatives to a token."""

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class TopLogprob(msgspec.Struct):
    """One of the likeliest tokens in a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """One token of the content.

    Attributes:
        token: its text; U+FFFD for what is no whole character.
        bytes: its UTF-8, exactly.
    """

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ContentLogprobs(msgspec.Struct):
    """The tokens of a choice, or of the piece of it that a chunk adds."""

    content: list[TokenLogprob]
    refusal: None = None


def json_logprob(value: float) -> float:
    """A logarithm of a probability, as JSON has it: finite, and at most 0."""
    # Not the other way round: a comparison with NaN is false.
    return min(value, 0.0) if value > LOWEST else LOWEST


def token_logprobs(entries: Iterable[ContentLogprob]) -> list[TokenLogprob]:
    """Entries as chat and Responses show them."""
    return [
        TokenLogprob(
            _text(entry.token),
            json_logprob(entry.logprob),
            list(entry.token),
            [
                TopLogprob(_text(token), json_logprob(value), list(token))
                for token, value in entry.top
            ],
        )
        for entry in entries
    ]


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")
