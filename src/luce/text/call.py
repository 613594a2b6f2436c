"""A generation request in our own words, whatever dialect it came in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn, in the shape chat templates expect.

    `content` is None beside tool calls. `extra` holds further template-visible keys
    (`name`, `tool_calls`, `tool_call_id`, ...), already plain JSON values.
    """

    role: str
    content: str | None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SamplingOverrides:
    """What the client asked for; None = the model's default applies."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    rep_window: int | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """One request, decoded and validated, not yet rendered for any model.

    Attributes:
        model: the name asked for, or None.
        messages: at least one.
        sampling: the client's overrides.
        max_tokens: None = the model's default; else > 0. Larger than the room is clamped.
        stop: stop strings, none of them empty.
        stream: whether events are sent as they come.
        include_usage: whether a stream ends with a usage frame.
        template_kwargs: extra variables for the chat template.
    """

    model: str | None
    messages: tuple[ChatMessage, ...]
    sampling: SamplingOverrides = SamplingOverrides()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)
