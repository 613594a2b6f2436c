"""Anthropic's Messages: request bodies in, streams of blocks and whole messages out."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from luce.errors import ApiError, InternalError, InvalidRequest
from luce.listener.dialects import anthropic_answer as answer
from luce.listener.dialects import anthropic_wire as wire
from luce.listener.dialects.answer_formats import (
    NamedFormat,
    answer_format,
    text_format,
)
from luce.listener.dialects.anthropic_errors import error_body
from luce.listener.dialects.anthropic_prompt import prompt_call
from luce.listener.dialects.openai_fields import (
    output_cap,
    refuse_several,
    sampling_overrides,
    stop_strings,
)
from luce.listener.dialects.ranges import check_ranges
from luce.listener.dialects.wire_errors import decode_json
from luce.text.call import GenerationCall
from luce.text.events import (
    Failed,
    Finished,
    GenEvent,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolCallStarted,
)

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class AnthropicMessages:
    """The dialect of `POST /v1/messages`."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(wire.MessagesRequest)

    def decode(self, body: bytes) -> GenerationCall:
        """Read and check a request; see `Dialect.decode`."""
        request = decode_json(self._decoder, body)
        check_ranges(request)
        refuse_several(request)
        if not request.messages:
            raise InvalidRequest("messages must not be empty.", param="messages")
        max_tokens = output_cap(request)
        if max_tokens is None:
            raise InvalidRequest("max_tokens is required.", param="max_tokens")
        call = prompt_call(request)
        wanted = answer_format(request, *_own_formats(request))
        return replace(
            call,
            sampling=sampling_overrides(request, max_tokens),
            max_tokens=max_tokens,
            stop=stop_strings(request, "stop_sequences"),
            stream=bool(request.stream),
            answer_format=wanted.format,
            client_names={**call.client_names, **wanted.names},
        )

    def stream_encoder(self, _call: GenerationCall) -> MessageStreamEncoder:
        """An encoder for one streamed answer."""
        return MessageStreamEncoder(_new_id())

    def body_encoder(self, _call: GenerationCall) -> MessageBodyEncoder:
        """An encoder for one whole answer."""
        return MessageBodyEncoder(_new_id())

    def error_body(self, error: ApiError) -> bytes:
        """Anthropic's error envelope."""
        return error_body(error)


class MessageStreamEncoder:
    """`message_start`, blocks one after the other, `message_delta`, `message_stop`."""

    def __init__(self, message_id: str) -> None:
        self._id = message_id
        self._encoder = msgspec.json.Encoder()
        self._index = -1
        self._open: type[answer.AnswerBlock] | None = None

    def encode(self, event: GenEvent) -> bytes:
        """Bytes of one event; see `StreamEncoder.encode`."""
        if isinstance(event, TextDelta):
            return self._opened(answer.TextBlock()) + self._delta(answer.TextDelta(event.text))
        if isinstance(event, ReasoningDelta):
            opened = self._opened(answer.ThinkingBlock())
            return opened + self._delta(answer.ThinkingDelta(event.text))
        if isinstance(event, ToolCallDelta):
            return self._delta(answer.InputJsonDelta(event.arguments))
        if isinstance(event, ToolCallStarted):
            return self._closed() + self._opened(_tool_use(event))
        if isinstance(event, Started):
            return self._frame("message_start", answer.MessageStart(self._empty(event))) + _PING
        if isinstance(event, Failed):
            return b"event: error\ndata: " + error_body(event.error) + b"\n\n"
        return self._closed() + self._end(event)

    def keep_alive(self) -> bytes:
        """What is sent when nothing else has been for a while."""
        return _PING

    def _empty(self, started: Started) -> answer.Message:
        usage = TokenUsage(started.prompt_tokens, started.cached_tokens, completion_tokens=0)
        return answer.Message(
            id=self._id, model=started.model, content=[], usage=answer.wire_usage(usage)
        )

    def _opened(self, block: answer.AnswerBlock) -> bytes:
        """Close what is open and begin this block, unless one of its kind is open."""
        if self._open is type(block):
            return b""
        closed = self._closed()
        self._open = type(block)
        self._index += 1
        return closed + self._frame("content_block_start", answer.BlockStart(self._index, block))

    def _closed(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open is answer.ThinkingBlock:
            signed = self._delta(answer.SignatureDelta(answer.SIGNATURE))
        self._open = None
        return signed + self._frame("content_block_stop", answer.BlockStop(self._index))

    def _delta(self, delta: answer.BlockDeltaBody) -> bytes:
        return self._frame("content_block_delta", answer.BlockDelta(self._index, delta))

    def _end(self, finished: Finished) -> bytes:
        reason, stop_sequence = _stop(finished)
        end = answer.MessageDelta(
            answer.MessageEnd(reason, stop_sequence), answer.wire_usage(finished.usage)
        )
        stop = self._frame("message_stop", answer.MessageStop())
        return self._frame("message_delta", end) + stop

    def _frame(self, name: str, event: answer.StreamedEvent) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (name.encode(), self._encoder.encode(event))


class MessageBodyEncoder:
    """Collects a generation into one message, with the blocks that its stream would have."""

    def __init__(self, message_id: str) -> None:
        self._id = message_id
        self._model = ""
        self._blocks: list[tuple[answer.AnswerBlock, list[str]]] = []
        self._finished: Finished | None = None

    def add(self, event: GenEvent) -> None:
        """Take the next event; see `BodyEncoder.add`."""
        if isinstance(event, TextDelta):
            self._part(answer.TextBlock()).append(event.text)
        elif isinstance(event, ReasoningDelta):
            self._part(answer.ThinkingBlock(signature=answer.SIGNATURE)).append(event.text)
        elif isinstance(event, ToolCallDelta):
            self._blocks[-1][1].append(event.arguments)
        elif isinstance(event, ToolCallStarted):
            self._blocks.append((_tool_use(event), []))
        elif isinstance(event, Started):
            self._model = event.model
        elif isinstance(event, Failed):
            raise event.error
        else:
            self._finished = event

    def body(self) -> bytes:
        """The answer; see `BodyEncoder.body`."""
        if self._finished is None:
            raise InternalError("The generation ended without an end.")
        reason, stop_sequence = _stop(self._finished)
        message = answer.Message(
            id=self._id,
            model=self._model,
            content=[_filled(block, "".join(texts)) for block, texts in self._blocks],
            stop_reason=reason,
            stop_sequence=stop_sequence,
            usage=answer.wire_usage(self._finished.usage),
        )
        return msgspec.json.encode(message)

    def _part(self, block: answer.AnswerBlock) -> list[str]:
        """Where text of this kind goes: the last block if it is one of them, else a new one."""
        if not self._blocks or type(self._blocks[-1][0]) is not type(block):
            self._blocks.append((block, []))
        return self._blocks[-1][1]


def _own_formats(request: wire.MessagesRequest) -> Iterator[NamedFormat]:
    if request.output_config is not None:
        yield text_format(request.output_config.format, "output_config.format")
    yield text_format(request.output_format, "output_format")


def _new_id() -> str:
    return f"msg_{secrets.token_hex(12)}"


def _tool_use(call: ToolCallStarted) -> answer.ToolUseBlock:
    return answer.ToolUseBlock(f"toolu_{call.call_id.removeprefix('call_')}", call.name)


def _filled(block: answer.AnswerBlock, text: str) -> answer.AnswerBlock:
    if isinstance(block, answer.TextBlock):
        block.text = text
    elif isinstance(block, answer.ThinkingBlock):
        block.thinking = text
    else:
        block.input = _input(text)
    return block


def _input(arguments: str) -> dict[str, Any]:
    """A call's arguments; what was cut off before it was whole goes under `_raw`."""
    if not arguments:
        return {}
    try:
        parsed = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {"_raw": arguments}
    return parsed if isinstance(parsed, dict) else {"_raw": arguments}


def _stop(finished: Finished) -> tuple[str, str | None]:
    if finished.reason == "stop" and finished.stop_string is not None:
        return "stop_sequence", finished.stop_string
    return _STOP_REASONS[finished.reason], None
