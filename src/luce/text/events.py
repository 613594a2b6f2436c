"""What happens to one generation, in order: Started, TextDelta*, then Finished or Failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from luce.errors import ApiError

FinishKind = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens as reported to the client; overshoot past a stop string is not counted."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Started:
    """Admitted by `model`: headers may go out now, fallback is over."""

    model: str
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More content; never empty, never a broken character, never part of a stop string."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The one terminal event of a generation that went well."""

    reason: FinishKind
    usage: TokenUsage
    stop_string: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The one terminal event of a generation that went wrong after it had started."""

    error: ApiError


GenEvent = Started | TextDelta | Finished | Failed
