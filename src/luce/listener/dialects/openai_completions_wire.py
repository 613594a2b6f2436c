"""Wire structs of OpenAI's legacy completions, and what we do with each field.

Explicit null is the same as absent, except for the prompt. Fields not named here are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from luce.listener.dialects.openai_wire import SamplingFields, WireUsage

DEFAULT_MAX_TOKENS = 16
"""As the API says."""

WirePrompt = str | list[str | int | list[int]]
"""A text, token ids, or several of either."""


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: WirePrompt
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Any = None
    response_format: Any = None
    prefix_cache: Any = None
    user: str | None = None


UNSERVED: dict[str, Callable[[CompletionRequest], bool]] = {
    "best_of": lambda request: request.best_of == (request.n or 1),
    "echo": lambda request: not request.echo,
    "suffix": lambda request: not request.suffix,
    "logprobs": lambda request: request.logprobs is False,
    "response_format": lambda _request: False,
    "prefix_cache": lambda _request: False,
}
"""Fields known and not served: refused unless null or, by this test, asking for nothing."""

NO_EFFECT = frozenset({"user"})
"""Known fields that change nothing here."""


# --- answers -------------------------------------------------------------------------


class TextChoice(msgspec.Struct, kw_only=True):
    """One choice: of a chunk, what it adds; of a whole answer, all of it."""

    text: str
    index: int
    logprobs: None = None
    finish_reason: str | None = None


class TextChunk(msgspec.Struct, kw_only=True):
    """One event of a streamed answer."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]


class TextAnswer(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: WireUsage
