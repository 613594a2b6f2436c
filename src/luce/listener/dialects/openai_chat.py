"""OpenAI's chat completions: request bodies in, chunks and answers out."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from luce.errors import ApiError, InternalError, InvalidRequest, UnsupportedFeature
from luce.listener.dialects import openai_wire as wire
from luce.listener.dialects.ranges import check_ranges, seed64, top_k32
from luce.listener.dialects.wire_errors import decode_json
from luce.text.call import ChatMessage, GenerationCall, SamplingOverrides
from luce.text.events import Failed, Finished, GenEvent, Started, TextDelta, TokenUsage

MAX_STOP_STRINGS = 16
MAX_LOGIT_BIAS = 100.0

_DONE = b"data: [DONE]\n\n"
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_MEDIA_PARTS = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "input_audio": "audio",
    "audio": "audio",
    "file": "files",
    "video_url": "videos",
}
_ROLES = {"developer": "system"}
_TEMPLATE_KEYS = ("name", "tool_call_id", "reasoning_content")


def _wall_clock_s() -> int:
    return int(datetime.now(tz=UTC).timestamp())


class OpenAIChat:
    """The dialect of `POST /v1/chat/completions`."""

    def __init__(self, clock_s: Callable[[], int] = _wall_clock_s) -> None:
        self._clock_s = clock_s
        self._decoder = msgspec.json.Decoder(wire.ChatRequest)

    def decode(self, body: bytes) -> GenerationCall:
        """Read and check a request; see `Dialect.decode`."""
        request = decode_json(self._decoder, body)
        _refuse_unserved(request)
        check_ranges(request)
        if not request.messages:
            raise InvalidRequest("messages must not be empty.", param="messages")
        options = request.stream_options
        return GenerationCall(
            model=request.model or None,
            messages=tuple(map(_message, itertools.count(), request.messages)),
            sampling=_overrides(request),
            max_tokens=_first(
                request.max_tokens, request.max_output_tokens, request.max_completion_tokens
            ),
            stop=_stop_strings(request),
            stream=bool(request.stream),
            include_usage=bool(options and options.include_usage),
            template_kwargs=request.chat_template_kwargs or {},
        )

    def stream_encoder(self, call: GenerationCall) -> ChatStreamEncoder:
        """An encoder for one streamed answer."""
        return ChatStreamEncoder(_new_id(), self._clock_s(), call.include_usage)

    def body_encoder(self, call: GenerationCall) -> ChatBodyEncoder:
        """An encoder for one whole answer."""
        return ChatBodyEncoder(_new_id(), self._clock_s())

    def error_body(self, error: ApiError) -> bytes:
        """OpenAI's error envelope."""
        return error_body(error)


class ChatStreamEncoder:
    """Role chunk, content, finish reason, usage if asked for, `[DONE]`."""

    def __init__(self, answer_id: str, created: int, include_usage: bool) -> None:
        self._id = answer_id
        self._created = created
        self._include_usage = include_usage
        self._model = ""
        self._encoder = msgspec.json.Encoder()

    def encode(self, event: GenEvent) -> bytes:
        """Bytes of one event; see `StreamEncoder.encode`."""
        if isinstance(event, TextDelta):
            return self._chunk(wire.Delta(content=event.text))
        if isinstance(event, Started):
            self._model = event.model
            return self._chunk(wire.Delta(role="assistant", content=""))
        if isinstance(event, Failed):
            return _frame(error_body(event.error)) + _DONE
        frames = self._chunk(wire.Delta(), finish_reason=event.reason)
        if self._include_usage:
            frames += self._usage(event.usage)
        return frames + _DONE

    def _chunk(self, delta: wire.Delta, finish_reason: str | None = None) -> bytes:
        choice = wire.ChunkChoice(delta=delta, finish_reason=finish_reason)
        chunk = wire.Chunk(id=self._id, created=self._created, model=self._model, choices=[choice])
        return _frame(self._encoder.encode(chunk))

    def _usage(self, usage: TokenUsage) -> bytes:
        chunk = wire.UsageChunk(
            id=self._id, created=self._created, model=self._model, usage=_usage(usage)
        )
        return _frame(self._encoder.encode(chunk))


class ChatBodyEncoder:
    """Collects a generation into one `chat.completion`."""

    def __init__(self, answer_id: str, created: int) -> None:
        self._id = answer_id
        self._created = created
        self._model = ""
        self._texts: list[str] = []
        self._finished: Finished | None = None

    def add(self, event: GenEvent) -> None:
        """Take the next event; see `BodyEncoder.add`."""
        if isinstance(event, TextDelta):
            self._texts.append(event.text)
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
        message = wire.AnswerMessage(content="".join(self._texts))
        choice = wire.AnswerChoice(message=message, finish_reason=self._finished.reason)
        answer = wire.Answer(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[choice],
            usage=_usage(self._finished.usage),
        )
        return msgspec.json.encode(answer)


def error_body(error: ApiError) -> bytes:
    """An error in OpenAI's envelope; also the one for paths that belong to no dialect."""
    detail = wire.ErrorDetail(error.message, error.type, error.param, error.code)
    return msgspec.json.encode(wire.ErrorBody(detail))


def _new_id() -> str:
    return f"chatcmpl-{secrets.token_hex(12)}"


def _frame(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _usage(usage: TokenUsage) -> wire.WireUsage:
    return wire.WireUsage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        wire.PromptDetails(usage.cached_tokens),
    )


def _refuse_unserved(request: wire.ChatRequest) -> None:
    for name, asks_for_nothing in wire.UNSERVED.items():
        if getattr(request, name) is not None and not asks_for_nothing(request):
            raise UnsupportedFeature(f"{name} is not supported here as given.", param=name)


def _message(index: int, message: wire.Message) -> ChatMessage:
    where = f"messages[{index}].content"
    content = message.content
    if isinstance(content, list):
        content = _joined_parts(content, where)
    if content is None and not (message.role == "assistant" and message.tool_calls):
        raise InvalidRequest(f"{where} is required.", param=where)
    extra: dict[str, Any] = {
        key: value for key in _TEMPLATE_KEYS if (value := getattr(message, key)) is not None
    }
    if message.tool_calls:
        extra["tool_calls"] = msgspec.to_builtins(message.tool_calls)
    return ChatMessage(_ROLES.get(message.role, message.role), content, extra)


def _joined_parts(parts: list[wire.ContentPart], where: str) -> str:
    if not parts:
        raise InvalidRequest(f"{where} must not be empty.", param=where)
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(parts))


def _part_text(part: wire.ContentPart, where: str) -> str:
    if part.type in _MEDIA_PARTS:
        raise UnsupportedFeature(
            f"{where}: this model takes no {_MEDIA_PARTS[part.type]}, only text.", param=where
        )
    if part.type not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{where}.type is unknown: {part.type[:64]!r}; use text.", param=f"{where}.type"
        )
    if part.text is None:
        raise InvalidRequest(f"{where}.text is required.", param=f"{where}.text")
    return part.text


def _overrides(request: wire.ChatRequest) -> SamplingOverrides:
    return SamplingOverrides(
        temperature=request.temperature,
        top_k=top_k32(request.top_k),
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=_first(request.repetition_penalty, request.rep_pen),
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        rep_window=request.rep_window,
        logit_bias=_checked_bias(request.logit_bias),
        seed=seed64(request.seed),
        ignore_eos=bool(request.ignore_eos),
    )


def _checked_bias(bias: dict[int, float] | None) -> dict[int, float] | None:
    for token_id, value in (bias or {}).items():
        if not abs(value) <= MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias of token {token_id} must be between -100 and 100, not {value:g}.",
                param="logit_bias",
            )
    return bias or None


def _stop_strings(request: wire.ChatRequest) -> tuple[str, ...]:
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    merged = tuple(dict.fromkeys(text for text in [*stop, *(request.stop_sequences or ())] if text))
    if len(merged) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"stop may have at most {MAX_STOP_STRINGS} strings, not {len(merged)}.", param="stop"
        )
    return merged


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
