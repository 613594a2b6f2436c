"""What happens to one generation, in order: Started, deltas, then Finished or Failed.

Reasoning, text and tool calls may alternate; the deltas of one call are never interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from luce.errors import ApiError

FinishKind = Literal["stop", "length", "tool_calls"]
"""Workers say "stop" and "length"; "tool_calls" is a "stop" that left complete calls."""

CloseKind = Literal["natural", "hard"]
"""How reasoning under a budget ended: by itself (or not at all), or by force."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens as reported to the client; overshoot past a stop string is not counted.

    Attributes:
        reasoning_tokens: how many of the completion's tokens were reasoning, tags included.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """Admitted by `model`: headers may go out now, fallback is over."""

    model: str
    cached_tokens: int
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ContentLogprob:
    """How likely one token of the content was; the bytes of a token may be part of a character.

    Attributes:
        token: its bytes.
        logprob: natural logarithm of its probability by the raw logits.
        top: the likeliest tokens in its place, likeliest first: bytes and logarithm.
    """

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More content; never empty, never a broken character, never part of a stop string.

    Attributes:
        text: the content.
        logprobs: if the call asked for them, of the tokens whose text ends in this delta or an
            earlier one and was not reported yet. All deltas together report each token of the
            content once.
    """

    text: str
    logprobs: tuple[ContentLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning; never empty, never part of a tag. Only when the call asked for reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The model calls a tool; comes once for each call.

    Attributes:
        index: 0, 1, 2 in order of the calls.
        call_id: `call_` and 24 hexadecimal digits, unique.
        name: a declared tool.
    """

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a call's arguments.

    Joined they are a JSON object. A generation that ends inside a call leaves the beginning of
    one, and does not finish with "tool_calls" on its account.
    """

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The one terminal event of a generation that went well.

    Attributes:
        close_kind: None: its reasoning had no budget.
    """

    reason: FinishKind
    usage: TokenUsage
    stop_string: str | None = None
    close_kind: CloseKind | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The one terminal event of a generation that went wrong after it had started."""

    error: ApiError


GenEvent = (
    Started | TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta | Finished | Failed
)
