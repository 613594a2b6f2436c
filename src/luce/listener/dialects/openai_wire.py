"""Wire structs of OpenAI's chat API, and what we do with each of its fields.

Explicit null is the same as absent: every optional field is `X | None`. Fields not named here
are ignored. The other OpenAI endpoints share the sampling fields, usage and errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from luce.listener.dialects.formats_wire import ResponseFormat
from luce.listener.dialects.logprobs import ContentLogprobs
from luce.listener.dialects.ranges import ItemList, StopString
from luce.listener.dialects.unserved import UNSERVED_ANYWHERE, formats_but


class FunctionCall(msgspec.Struct):
    """What an assistant turn called."""

    name: str
    arguments: str | dict[str, Any] | None = "{}"


class ToolCall(msgspec.Struct, omit_defaults=True):
    """One call of an assistant turn in the history."""

    function: FunctionCall
    id: str | None = None
    type: str | None = None


class ContentPart(msgspec.Struct):
    """One part of a message; which types are served is checked later."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Message(msgspec.Struct):
    """One turn; its role is checked later."""

    role: str
    content: str | ItemList[ContentPart] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: ItemList[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class FunctionSpec(msgspec.Struct):
    """A function the model may call.

    Attributes:
        parameters: JSON schema of an object.
        strict: arguments are held to it.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool on offer; only functions are served."""

    type: str = "function"
    function: FunctionSpec | None = None


class ChosenFunction(msgspec.Struct):
    """Names a function."""

    name: str


class ToolName(msgspec.Struct):
    """Names a tool."""

    type: str
    function: ChosenFunction | None = None


class AllowedTools(msgspec.Struct):
    """The tools that may be called; with the mode required one of them must be."""

    mode: Literal["auto", "required"]
    tools: ItemList[ToolName]


class ChosenTool(ToolName):
    """The tool that must be called, or those that may be."""

    allowed_tools: AllowedTools | None = None


ToolChoice = Literal["auto", "none", "required"] | ChosenTool


class StreamOptions(msgspec.Struct):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What the endpoints have in common.

    Attributes:
        grammar, regex: of ours: what the answer must look like, as Lark or a regular expression.
        guided_json: from here on what other local servers call it.
        response_format: from here on what the APIs call it; each refuses the others' names.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
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
    stop: StopString | ItemList[StopString] | None = None
    stop_sequences: ItemList[StopString] | None = None
    logit_bias: dict[int, float] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    grammar: str | None = None
    regex: str | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    ebnf: Any = None
    prefix_cache: Any = None
    response_format: Any = None
    text: Any = None
    output_config: Any = None
    output_format: Any = None


class ChatRequest(SamplingFields, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: ItemList[Message]
    chat_template_kwargs: dict[str, Any] | None = None
    tools: ItemList[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Any = None
    reasoning_effort: Any = None
    thinking: Any = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    moderation: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None


NO_EFFECT = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Known fields that change nothing here; those of one type are checked for it."""

UNSERVED: dict[str, Callable[[ChatRequest], bool]] = {
    **UNSERVED_ANYWHERE,
    **formats_but("response_format"),
    "functions": lambda request: request.functions == [] or request.function_call == "none",
    "function_call": lambda request: request.function_call in ("none", "auto"),
    "modalities": lambda request: request.modalities in (["text"], []),
    "audio": lambda _request: False,
    "prediction": lambda _request: False,
    "moderation": lambda _request: False,
    "verbosity": lambda request: request.verbosity == "medium",
    "web_search_options": lambda _request: False,
}
"""Fields known and not served: refused unless null or, by this test, asking for nothing."""

SERVED = frozenset(ChatRequest.__struct_fields__) - frozenset(UNSERVED) - NO_EFFECT
"""Fields that do what they say."""


# --- answers -------------------------------------------------------------------------


class CalledFunction(msgspec.Struct, omit_defaults=True):
    """A call in an answer; in a stream the name comes once, then pieces of the arguments."""

    name: str | None = None
    arguments: str | None = None


class AnswerCall(msgspec.Struct, kw_only=True):
    """A whole call."""

    id: str
    type: str = "function"
    function: CalledFunction


class CallDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a chunk adds to a call."""

    # No default, so that index 0 is written too.
    index: int
    id: str | None = None
    type: str | None = None
    function: CalledFunction


class Delta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds; empty in the chunk that carries the finish reason.

    Attributes:
        reasoning: the same as `reasoning_content`; clients read one or the other.
    """

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None


class FinishDetails(msgspec.Struct):
    """How an answer with a budget for reasoning came to its end.

    Attributes:
        close_kind: "hard": its reasoning was closed by force; else "natural".
    """

    close_kind: str
    thinking_tokens: int
    content_tokens: int
    total_tokens: int


class ChunkChoice(msgspec.Struct, kw_only=True):
    """The one choice of a chunk."""

    index: int = 0
    delta: Delta
    logprobs: ContentLogprobs | None = None
    finish_reason: str | None = None
    finish_details: FinishDetails | msgspec.UnsetType = msgspec.UNSET


class PromptDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    """What completion tokens were for."""

    reasoning_tokens: int


class WireUsage(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Chunk(msgspec.Struct, kw_only=True):
    """One event of a streamed answer."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]


class UsageChunk(msgspec.Struct, kw_only=True):
    """The event after the last finish reason, when the client asked for it."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[()] = ()
    usage: WireUsage


class AnswerMessage(msgspec.Struct, kw_only=True):
    """The assistant's turn.

    Attributes:
        content: null only where there are calls and no text.
    """

    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[AnswerCall] | msgspec.UnsetType = msgspec.UNSET


class AnswerChoice(msgspec.Struct, kw_only=True):
    """One choice of a whole answer."""

    index: int
    message: AnswerMessage
    logprobs: ContentLogprobs | None = None
    finish_reason: str
    finish_details: FinishDetails | msgspec.UnsetType = msgspec.UNSET


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
