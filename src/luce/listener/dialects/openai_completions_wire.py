"""Wire structs of OpenAI's legacy completions, and what we do with each field.

Explicit null is the same as absent, except for the prompt. Fields not named here are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from luce.listener.dialects.formats_wire import ResponseFormat
from luce.listener.dialects.openai_completions_logprobs import TextLogprobs
from luce.listener.dialects.openai_wire import SamplingFields, WireUsage
from luce.listener.dialects.unserved import UNSERVED_ANYWHERE, formats_but

DEFAULT_MAX_TOKENS = 16
"""As the API says."""

WirePrompt = str | list[str | int | list[int]]
"""A text, token ids, or several of either."""


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of `POST /v1/completions`.

    Attributes:
        messages: from here on what only chat can do: a prompt has no template.
    """

    prompt: WirePrompt
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: int | bool | None = None
    response_format: ResponseFormat | None = None
    messages: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    top_logprobs: Any = None
    reasoning: Any = None
    reasoning_effort: Any = None
    thinking: Any = None
    chat_template_kwargs: Any = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None


def _is_all_off(given: Any) -> bool:
    """Whether variables of a template, or what is said of reasoning, ask for nothing."""
    off = (False, None, "none", "disabled")
    return isinstance(given, dict) and all(value in off for value in given.values())


UNSERVED: dict[str, Callable[[CompletionRequest], bool]] = {
    **UNSERVED_ANYWHERE,
    **formats_but("response_format"),
    "best_of": lambda request: request.best_of == (request.n or 1),
    "echo": lambda request: not request.echo,
    "suffix": lambda request: not request.suffix,
    "messages": lambda _request: False,
    "tools": lambda request: request.tools == [] or request.tool_choice == "none",
    "tool_choice": lambda request: request.tool_choice in ("none", "auto"),
    "functions": lambda request: request.functions == [] or request.function_call == "none",
    "function_call": lambda request: request.function_call in ("none", "auto"),
    "top_logprobs": lambda request: request.top_logprobs == 0,
    "reasoning": lambda request: _is_all_off(request.reasoning),
    "reasoning_effort": lambda request: request.reasoning_effort == "none",
    "thinking": lambda request: _is_all_off(request.thinking),
    "chat_template_kwargs": lambda request: _is_all_off(request.chat_template_kwargs),
}
"""Fields known and not served: refused unless null or, by this test, asking for nothing."""

NO_EFFECT = frozenset(
    {
        *("metadata", "prompt_cache_key", "safety_identifier"),
        *("service_tier", "store", "user"),
    }
)
"""Known fields that change nothing here; each is checked for its type."""

SERVED = frozenset(CompletionRequest.__struct_fields__) - frozenset(UNSERVED) - NO_EFFECT
"""Fields that do what they say."""


# --- answers -------------------------------------------------------------------------


class TextChoice(msgspec.Struct, kw_only=True):
    """One choice: of a chunk, what it adds; of a whole answer, all of it."""

    text: str
    index: int
    logprobs: TextLogprobs | None = None
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
