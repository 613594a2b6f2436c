"""Wire structs of OpenAI's Responses answers: responses, their items, the events of streams."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from luce.errors import ApiError
from luce.listener.dialects import responses_wire as wire
from luce.listener.dialects.logprobs import TokenLogprob
from luce.text.events import TokenUsage

IN_PROGRESS = "in_progress"
COMPLETED = "completed"
INCOMPLETE = "incomplete"
FAILED = "failed"


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """What the model says."""

    text: str
    annotations: tuple[()] = ()
    logprobs: Sequence[TokenLogprob] = ()


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """What the model thinks."""

    text: str


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    """The same for clients that asked for a summary."""

    text: str


AnswerPart = OutputText | ReasoningText | SummaryText


class Message(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """An item of text."""

    id: str
    status: str
    role: str = "assistant"
    content: list[OutputText]


class ReasoningItem(
    msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="reasoning"
):
    """An item of reasoning, either in `content` or in `summary`."""

    id: str
    status: str
    summary: list[SummaryText]
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class FunctionCall(
    msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="function_call"
):
    """A call of a function."""

    id: str
    status: str
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class CustomToolCall(
    msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="custom_tool_call"
):
    """A call of a custom tool."""

    id: str
    status: str
    call_id: str
    name: str
    namespace: str | None = None
    input: str


AnswerItem = Message | ReasoningItem | FunctionCall | CustomToolCall


class InputDetails(msgspec.Struct):
    """Where input tokens came from."""

    cached_tokens: int


class OutputDetails(msgspec.Struct):
    """What output tokens were for."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete."""

    reason: str


class Response(msgspec.Struct, kw_only=True):
    """A whole answer, or how far it is; from `instructions` on mostly what the client asked."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[AnswerItem]
    usage: Usage | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: wire.Reasoning
    store: bool
    temperature: float | None
    text: wire.TextConfig
    tool_choice: wire.ToolChoice
    tools: list[wire.Tool]
    top_logprobs: int | None
    top_p: float | None
    truncation: str = "disabled"
    background: bool = False


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An event of a stream; what is null does not belong to its type."""

    type: str
    sequence_number: int | None = None
    response: msgspec.Raw | None = None
    output_index: int | None = None
    item: AnswerItem | None = None
    item_id: str | None = None
    content_index: int | None = None
    summary_index: int | None = None
    part: AnswerPart | None = None
    delta: str | None = None
    logprobs: Sequence[TokenLogprob] | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


def wire_usage(usage: TokenUsage) -> Usage:
    """Our counts in OpenAI's terms."""
    return Usage(
        usage.prompt_tokens,
        InputDetails(usage.cached_tokens),
        usage.completion_tokens,
        OutputDetails(usage.reasoning_tokens),
        usage.prompt_tokens + usage.completion_tokens,
    )


def response_error(error: ApiError) -> ResponseError:
    """What clients branch on: codes of OpenAI's, and ours for what they could have done better."""
    return ResponseError("server_error" if error.status >= 500 else error.code, error.message)
