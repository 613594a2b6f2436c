"""What can be called: every path, what it takes, what it answers, how it may fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from luce.errors import (
    ApiError,
    BodyTooLarge,
    ContextLengthExceeded,
    Forbidden,
    InternalError,
    InvalidRequest,
    ModelLoading,
    ModelNotFound,
    ModelUnavailable,
    QueueFull,
    RequestTimeout,
    ResponseNotFound,
    ShuttingDown,
    TemplateError,
    Unauthorized,
    UnsupportedFeature,
    UnsupportedMediaType,
    WorkerLost,
)
from luce.listener.dialects import (
    anthropic_answer,
    anthropic_wire,
    hidden_states,
    openai_completions_wire,
    openai_wire,
    responses_answer,
    responses_wire,
)
from luce.listener.openapi.rules import MESSAGE_RULES, Schema
from luce.listener.routes.health import Health, Liveness
from luce.listener.routes.models import ModelCard, ModelList
from luce.listener.routes.responses import DeletedResponse
from luce.listener.routes.status import Status
from luce.listener.routes.tokens import TokenCount, TokenizeAnswer, TokenizeRequest
from luce.listener.routes.unload import UnloadAnswer, UnloadRequest

JSON = "application/json"
HTML = "text/html; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

_BODY = (InvalidRequest, RequestTimeout, BodyTooLarge, UnsupportedMediaType, InternalError)
_PROMPT = (UnsupportedFeature, ContextLengthExceeded, TemplateError)
_CAPACITY = (QueueFull, ModelLoading, ModelUnavailable, WorkerLost, ShuttingDown)
_GENERATION = (*_BODY, *_PROMPT, *_CAPACITY, ModelNotFound)
_TOKENS = (*_BODY, TemplateError, ModelNotFound, ModelLoading)


class AnthropicErrorDetail(msgspec.Struct):
    """What went wrong; `code` and `param` are not in Anthropic's API.

    Attributes:
        param: path of the offending field, e.g. `messages[0].content`.
    """

    type: str
    message: str
    code: str
    param: str | None


class AnthropicErrorBody(msgspec.Struct, kw_only=True):
    """Anthropic's error envelope."""

    type: str = "error"
    error: AnthropicErrorDetail
    request_id: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class PathParameter:
    """A part of a path."""

    name: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        tag: the section it stands in.
        request: type of the JSON body; None = it takes none.
        answer: type of the JSON answer; None = it is a text.
        rules: what its request needs besides its type, which other operations share.
        refused: fields of the request that are known and not served.
        ignored: fields of it that are known and change nothing.
        events: types of what a stream's events carry as data; empty = it never streams.
        stream_end: what ends a stream.
        media_type: of the answer that is no stream.
        errors: what it may fail with besides a missing key.
        also: status → type of answers that are no errors.
        error_body: how errors look.
        is_open: it needs no key.
    """

    method: str
    path: str
    tag: str
    summary: str
    description: str = ""
    request: type | None = None
    rules: Schema | None = None
    refused: Iterable[str] = ()
    ignored: Iterable[str] = ()
    answer: type | None = None
    events: tuple[type, ...] = ()
    stream_end: str = ""
    media_type: str = JSON
    errors: tuple[type[ApiError], ...] = ()
    also: tuple[tuple[int, type], ...] = ()
    error_body: type = openai_wire.ErrorBody
    parameters: tuple[PathParameter, ...] = ()
    is_open: bool = False

    @property
    def operation_id(self) -> str:
        """A name for generated clients: `post_v1_chat_completions`."""
        words = self.path.replace("{", "").replace("}", "").replace("/", " ").split()
        return "_".join([self.method.lower(), *(words or ["root"])]).replace(".", "_")

    @property
    def all_errors(self) -> tuple[type[ApiError], ...]:
        """Its errors and those of everything that is not open."""
        shared: tuple[type[ApiError], ...] = () if self.is_open else (Unauthorized,)
        return (*self.errors, *shared, *((Forbidden,) if self.method != "GET" else ()))


_GENERATION_TAG = "Generation"
_TOKENS_TAG = "Tokens"
_SERVER_TAG = "The server"

OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/chat/completions",
        tag=_GENERATION_TAG,
        summary="Answer a conversation (OpenAI Chat Completions).",
        request=openai_wire.ChatRequest,
        refused=openai_wire.UNSERVED,
        ignored=openai_wire.NO_EFFECT,
        answer=openai_wire.Answer,
        events=(openai_wire.Chunk, openai_wire.UsageChunk, openai_wire.ErrorBody),
        stream_end="`data: [DONE]`",
        errors=_GENERATION,
    ),
    Operation(
        method="POST",
        path="/v1/completions",
        tag=_GENERATION_TAG,
        summary="Continue a text (OpenAI Completions).",
        request=openai_completions_wire.CompletionRequest,
        refused=openai_completions_wire.UNSERVED,
        ignored=openai_completions_wire.NO_EFFECT,
        answer=openai_completions_wire.TextAnswer,
        events=(openai_completions_wire.TextChunk, openai_wire.UsageChunk, openai_wire.ErrorBody),
        stream_end="`data: [DONE]`",
        errors=_GENERATION,
    ),
    Operation(
        method="POST",
        path="/v1/messages",
        tag=_GENERATION_TAG,
        summary="Answer a conversation (Anthropic Messages).",
        request=anthropic_wire.MessagesRequest,
        rules=MESSAGE_RULES,
        refused=anthropic_wire.UNSERVED,
        ignored=anthropic_wire.NO_EFFECT,
        answer=anthropic_answer.Message,
        events=(
            anthropic_answer.MessageStart,
            anthropic_answer.Ping,
            anthropic_answer.BlockStart,
            anthropic_answer.BlockDelta,
            anthropic_answer.BlockStop,
            anthropic_answer.MessageDelta,
            anthropic_answer.MessageStop,
            AnthropicErrorBody,
        ),
        stream_end="`message_stop` or `error`",
        errors=_GENERATION,
        error_body=AnthropicErrorBody,
    ),
    Operation(
        method="POST",
        path="/v1/responses",
        tag=_GENERATION_TAG,
        summary="Answer a conversation (OpenAI Responses).",
        request=responses_wire.ResponsesRequest,
        refused=responses_wire.UNSERVED,
        ignored=responses_wire.NO_EFFECT,
        answer=responses_answer.Response,
        events=(responses_answer.Event,),
        stream_end="`response.completed`, `response.incomplete` or `response.failed`",
        errors=(*_GENERATION, ResponseNotFound),
    ),
    Operation(
        method="GET",
        path="/v1/responses/{response_id}",
        tag=_GENERATION_TAG,
        summary="Show a response that is kept.",
        answer=responses_answer.Response,
        errors=(ResponseNotFound, UnsupportedFeature),
        parameters=(PathParameter(name="response_id", description="Id of a response."),),
    ),
    Operation(
        method="DELETE",
        path="/v1/responses/{response_id}",
        tag=_GENERATION_TAG,
        summary="Forget a response that is kept.",
        answer=DeletedResponse,
        errors=(ResponseNotFound,),
        parameters=(PathParameter(name="response_id", description="Id of a response."),),
    ),
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        tag=_TOKENS_TAG,
        summary="Count the tokens of the prompt a Messages request would be.",
        description="With several models the request names one of them.",
        request=anthropic_wire.MessagesRequest,
        answer=TokenCount,
        errors=_TOKENS,
        error_body=AnthropicErrorBody,
    ),
    Operation(
        method="POST",
        path="/tokenize",
        tag=_TOKENS_TAG,
        summary="Token ids of a text or a conversation.",
        description="With several models the request names one of them.",
        request=TokenizeRequest,
        answer=TokenizeAnswer,
        errors=_TOKENS,
    ),
    Operation(
        method="POST",
        path="/v1/hidden_states",
        tag=_TOKENS_TAG,
        summary="The residual stream of a conversation's prompt.",
        description="With several models the request names one of them.",
        request=hidden_states.HiddenStatesRequest,
        refused=openai_wire.UNSERVED,
        ignored=openai_wire.NO_EFFECT,
        answer=hidden_states.HiddenStatesAnswer,
        errors=_GENERATION,
    ),
    Operation(
        method="GET",
        path="/v1/models",
        tag=_SERVER_TAG,
        summary="The models, in the order requests try them.",
        description="`?client_version` answers in the form that Codex reads.",
        answer=ModelList,
    ),
    Operation(
        method="GET",
        path="/v1/models/{name}",
        tag=_SERVER_TAG,
        summary="One model.",
        answer=ModelCard,
        errors=(ModelNotFound,),
        parameters=(PathParameter(name="name", description="Name of a model."),),
    ),
    Operation(
        method="POST",
        path="/models/unload",
        tag=_SERVER_TAG,
        summary="Take a model out of memory until a request names it again.",
        description="Where models come and go. It finishes what runs; who waits for it gets 503.",
        request=UnloadRequest,
        answer=UnloadAnswer,
        errors=(*_BODY, ModelNotFound),
    ),
    Operation(
        method="GET",
        path="/health",
        tag=_SERVER_TAG,
        summary="Whether requests are served.",
        description="`?live` answers as `/health/live` does.",
        answer=Health,
        also=((503, Health),),
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/health/live",
        tag=_SERVER_TAG,
        summary="Whether the server runs, whatever its models do.",
        answer=Liveness,
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/",
        tag=_SERVER_TAG,
        summary="Who this is.",
        answer=Liveness,
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/props",
        tag=_SERVER_TAG,
        summary="What was resolved and what is supported.",
        answer=dict[str, Any],
    ),
    Operation(
        method="GET",
        path="/status/json",
        tag=_SERVER_TAG,
        summary="What the server is doing.",
        answer=Status,
    ),
    Operation(
        method="GET",
        path="/metrics",
        tag=_SERVER_TAG,
        summary="Every metric, in Prometheus' text format.",
        media_type=PROMETHEUS,
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        tag=_SERVER_TAG,
        summary="This document.",
        answer=dict[str, Any],
    ),
    Operation(
        method="GET",
        path="/docs",
        tag=_SERVER_TAG,
        summary="This document as a page.",
        media_type=HTML,
    ),
)
