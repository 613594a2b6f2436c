"""Wire structs of OpenAI's chat API, and what we do with each of its fields.

Explicit null is the same as absent: every optional field is `X | None`. Fields not named here
are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec


class FunctionCall(msgspec.Struct):
    """What an assistant turn called."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(msgspec.Struct, omit_defaults=True):
    """One call of an assistant turn in the history."""

    function: FunctionCall
    id: str | None = None
    type: str | None = None


class ContentPart(msgspec.Struct):
    """One part of a message; which types are served is checked later."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class StreamOptions(msgspec.Struct):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """Body of `POST /v1/chat/completions`."""

    messages: list[Message]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_output_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    rep_pen: float | None = None
    rep_window: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_sequences: list[str] | None = None
    logit_bias: dict[int, float] | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    n: int | None = None
    logprobs: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    moderation: Any = None
    reasoning: Any = None
    reasoning_effort: Any = None
    thinking: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    prefix_cache: Any = None


NO_EFFECT = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "top_logprobs",
        "user",
    }
)
"""Known fields that change nothing here whatever they say, so they are accepted.

`top_logprobs` only means something beside `logprobs`, which is refused.
"""


def _tools_unused(request: ChatRequest) -> bool:
    return not request.tools or request.tool_choice == "none"


def _format_is_text(request: ChatRequest) -> bool:
    chosen = request.response_format
    return isinstance(chosen, dict) and chosen.get("type") == "text"


UNSERVED: dict[str, Callable[[ChatRequest], bool]] = {
    "n": lambda request: request.n is None or request.n <= 1,
    "logprobs": lambda request: request.logprobs is False,
    "tools": _tools_unused,
    "tool_choice": lambda request: request.tool_choice == "none" or not request.tools,
    "functions": lambda request: request.functions == [] or request.function_call == "none",
    "function_call": lambda request: request.function_call == "none" or not request.functions,
    "response_format": _format_is_text,
    "modalities": lambda request: request.modalities in (["text"], []),
    "audio": lambda _request: False,
    "prediction": lambda _request: False,
    "moderation": lambda _request: False,
    "reasoning": lambda _request: False,
    "reasoning_effort": lambda _request: False,
    "thinking": lambda _request: False,
    "verbosity": lambda request: request.verbosity == "medium",
    "web_search_options": lambda _request: False,
    "prefix_cache": lambda _request: False,
}
"""Fields known and not served: refused unless null or, by this test, asking for nothing."""

SERVED = frozenset(ChatRequest.__struct_fields__) - frozenset(UNSERVED)
"""Fields that do what they say."""


# --- answers -------------------------------------------------------------------------


class Delta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds; empty in the chunk that carries the finish reason."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """The one choice of a chunk."""

    index: int = 0
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int


class WireUsage(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Chunk(msgspec.Struct, kw_only=True):
    """One event of a streamed answer."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]


class UsageChunk(msgspec.Struct, kw_only=True):
    """The event after the finish reason, when the client asked for it."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[()] = ()
    usage: WireUsage


class AnswerMessage(msgspec.Struct, kw_only=True):
    """The assistant's turn."""

    role: str = "assistant"
    content: str
    refusal: None = None


class AnswerChoice(msgspec.Struct, kw_only=True):
    """The one choice of a whole answer."""

    index: int = 0
    message: AnswerMessage
    logprobs: None = None
    finish_reason: str


class Answer(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: WireUsage


class ErrorDetail(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """OpenAI's error envelope."""

    error: ErrorDetail
