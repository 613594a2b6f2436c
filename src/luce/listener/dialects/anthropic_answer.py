"""Wire structs of Anthropic's answers: messages, and the events of their streams."""

from __future__ import annotations

from typing import Any

import msgspec

from luce.text.events import TokenUsage

SIGNATURE = "bHVjZQ=="
"""Anthropic signs its models' thinking, and clients want a signature. Ours says "luce"; nothing
here reads it when it comes back."""


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """What the model says."""

    text: str = ""


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thinks."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any] = {}


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class OutputDetails(msgspec.Struct):
    """What output tokens were for."""

    thinking_tokens: int


class Usage(msgspec.Struct):
    """Token counts; the prompt's length is the sum of the three about input."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails


class Message(msgspec.Struct, kw_only=True):
    """A whole answer; without content in the event that begins a stream."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """First event."""

    message: Message


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Says that the server is still there."""


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """A block begins; it is empty."""

    index: int
    content_block: AnswerBlock


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More of a text block."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More of a thinking block."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The end of a thinking block."""

    signature: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of a call's input; joined they are a JSON object."""

    partial_json: str


BlockDeltaBody = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """More of the block."""

    index: int
    delta: BlockDeltaBody


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """The block is complete."""

    index: int


class MessageEnd(msgspec.Struct):
    """Why the message ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """The message is complete; `usage` replaces what the first event said."""

    delta: MessageEnd
    usage: Usage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """Last event."""


StreamedEvent = (
    MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
)


def wire_usage(usage: TokenUsage) -> Usage:
    """Our counts in Anthropic's terms: what the cache held is no input."""
    return Usage(
        usage.prompt_tokens - usage.cached_tokens,
        0,
        usage.cached_tokens,
        usage.completion_tokens,
        OutputDetails(usage.reasoning_tokens),
    )
