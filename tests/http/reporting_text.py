"""A text side that remembers the calls it was given and makes up log probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from http_harness import Harness

from luce.text.call import GenerationCall
from luce.text.events import ContentLogprob, GenEvent, TextDelta

WIDTH = 2
"""Bytes of a token: less than a character may have."""


class ReportingText:
    """Another text side with these two things added.

    Args:
        inner: the other text side.

    Attributes:
        calls: in order.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[GenerationCall] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def prepare(self, call: GenerationCall, limit: int | None = None) -> Any:
        self.calls.append(call)
        return self._inner.prepare(call, limit)

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        return _Pipeline(self._inner.pipeline(*args, **kwargs), self.calls[-1].sampling.logprobs)


class _Pipeline:
    def __init__(self, inner: Any, num_top: int | None) -> None:
        self._inner = inner
        self._num_top = num_top

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def feed(self, *args: Any, **kwargs: Any) -> list[GenEvent]:
        return [self._reported(event) for event in self._inner.feed(*args, **kwargs)]

    def _reported(self, event: GenEvent) -> GenEvent:
        if self._num_top is None or not isinstance(event, TextDelta):
            return event
        return TextDelta(event.text, tuple(made_up(event.text, self._num_top)))


def made_up(text: str, num_top: int) -> Iterator[ContentLogprob]:
    """What is reported of a piece of text: one of the numbers is none that JSON has."""
    for character in text:
        raw = character.encode()
        for start in range(0, len(raw), WIDTH):
            token = raw[start : start + WIDTH]
            top = ((token, -0.25), (b"\xff", -1.5), (b"never", -math.inf))
            yield ContentLogprob(token, -0.25, top[:num_top])


def last_call(server: Harness) -> GenerationCall:
    """What the text side of the first model was asked last."""
    text: Any = server.models[0].text
    call: GenerationCall = text.calls[-1]
    return call
