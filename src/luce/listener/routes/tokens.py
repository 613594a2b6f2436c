"""`POST /v1/messages/count_tokens` and `POST /tokenize`.

Both use one model's tokenizer and template and nothing of its worker: they need no capacity
and answer while it is busy or down. With several models the request names the one it means.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from luce.errors import ApiError, ContextLengthExceeded, InvalidRequest, ModelLoading
from luce.listener.body import BodyLimits, read_json_body
from luce.listener.context import context_of
from luce.listener.dialects import anthropic_errors, openai_chat
from luce.listener.dialects.anthropic_prompt import prompt_call
from luce.listener.dialects.anthropic_wire import MessagesRequest
from luce.listener.dialects.client_names import in_clients_words
from luce.listener.dialects.ranges import check_ranges
from luce.listener.dialects.wire_errors import decode_json
from luce.listener.named_model import named_model
from luce.listener.ports import Prompt, Text
from luce.listener.respond import send_body, send_error
from luce.listener.served import ServedModels
from luce.text.call import GenerationCall, ToolChoice

MAX_TOKENS = 2**20
"""Longest conversation that is counted, unless the model's context is longer: two seconds."""

MAX_CHARACTERS = 2**21
"""Longest plain text that is tokenised: two seconds, too."""

Work = Callable[[], bytes]
"""Renders, tokenises and encodes the answer; runs in a thread."""


class TokenTask(Protocol):
    """What one of the two endpoints does."""

    def decode(self, body: bytes, models: ServedModels) -> Work:
        """Check a request.

        Raises:
            ApiError: it is wrong, or its model cannot be asked.
        """

    def error_body(self, error: ApiError) -> bytes:
        """An error as this endpoint shows it."""


class TokenEndpoint:
    """An ASGI app for one of the tasks."""

    def __init__(
        self, task: TokenTask, models: ServedModels, executor: Executor, limits: BodyLimits
    ) -> None:
        self._task = task
        self._models = models
        self._executor = executor
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            work = self._task.decode(
                await read_json_body(scope, receive, self._limits), self._models
            )
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._executor, work)
        except ApiError as error:
            context_of(scope).outcome["error"] = error.code
            await send_error(send, receive, error, self._task.error_body(error))
        else:
            await send_body(send, 200, answer)


class CountTokens:
    """Anthropic's token count: the prompt that a Messages request would be."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(MessagesRequest)

    def decode(self, body: bytes, models: ServedModels) -> Work:
        """Check a request; see `TokenTask.decode`."""
        request = decode_json(self._decoder, body)
        check_ranges(request)
        call = prompt_call(request)
        return partial(_count, _text_of(models, request.model), call)

    def error_body(self, error: ApiError) -> bytes:
        """Anthropic's error envelope."""
        return anthropic_errors.error_body(error)


class TokenizeRequest(msgspec.Struct):
    """Body of `POST /tokenize`: exactly one of `content`, `prompt` and `messages`.

    Attributes:
        content: plain text. `prompt` is another name for it.
        messages: a conversation as in chat completions, rendered with the model's template.
        add_special: begin with the token that the model's prompts begin with, if they do.
        parse_special: texts of control tokens become those tokens.
        with_pieces: give each token's text as well.
    """

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    messages: Any = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class TokenCount(msgspec.Struct):
    """How long the prompt would be."""

    input_tokens: int


class TokenPiece(msgspec.Struct):
    """A token with its text, or with its bytes where they are no whole characters."""

    id: int
    piece: str | list[int]


class TokenizeAnswer(msgspec.Struct):
    """The tokens; with their texts if the request asked for them."""

    tokens: list[int | TokenPiece]
    count: int


class Tokenize:
    """Token ids of a text or a conversation."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(TokenizeRequest)
        self._chat = openai_chat.OpenAIChat()

    def decode(self, body: bytes, models: ServedModels) -> Work:
        """Check a request; see `TokenTask.decode`."""
        request = decode_json(self._decoder, body)
        sources = [
            name for name in ("content", "prompt", "messages") if getattr(request, name) is not None
        ]
        if len(sources) != 1:
            raise InvalidRequest(
                "Send exactly one of content, prompt and messages.",
                param=sources[1] if sources else "content",
            )
        _check_length(request.content or request.prompt or "", sources[0])
        text = _text_of(models, request.model)
        if sources == ["messages"]:
            _refuse_text_options(request)
            return partial(_tokenize_chat, text, self._chat.decode(body), request)
        return partial(_tokenize_text, text, request)

    def error_body(self, error: ApiError) -> bytes:
        """OpenAI's error envelope."""
        return openai_chat.error_body(error)


def _text_of(models: ServedModels, name: str | None) -> Text[Any]:
    model = named_model(models, name)
    if model.text is None:
        raise ModelLoading(f"The tokenizer of model {model.name} is loading.")
    return model.text


def _prepared(text: Text[Any], call: GenerationCall) -> Prompt:
    """The prompt of a call.

    Raises:
        ApiError: it has none, or is too long to be counted.
    """
    # Only what decides about the prompt: nothing is generated, so no grammar need be made.
    choice: ToolChoice = "none" if call.tool_choice == "none" else "auto"
    tools = tuple(replace(tool, is_strict=False) for tool in call.tools)
    call = replace(call, tool_choice=choice, tools=tools, answer_format=None)
    limit = max(MAX_TOKENS, text.context_length)
    with in_clients_words(call):
        try:
            prompt: Prompt = text.prepare(call, limit)
        except ContextLengthExceeded as error:
            raise InvalidRequest(
                f"The messages have more than {limit} tokens; that many are not counted.",
                param="messages",
            ) from error
    return prompt


def _refuse_text_options(request: TokenizeRequest) -> None:
    """The template decides about these itself."""
    for name in ("add_special", "parse_special"):
        if getattr(request, name) is not None:
            raise InvalidRequest(
                f"{name} is for content and prompt; messages get what the template writes.",
                param=name,
            )


def _check_length(content: str, param: str) -> None:
    if len(content) > MAX_CHARACTERS:
        raise InvalidRequest(
            f"{param} may have at most {MAX_CHARACTERS} characters, not {len(content)}.",
            param=param,
        )


def _count(text: Text[Any], call: GenerationCall) -> bytes:
    return msgspec.json.encode(TokenCount(_prepared(text, call).num_tokens))


def _tokenize_chat(text: Text[Any], call: GenerationCall, request: TokenizeRequest) -> bytes:
    ids = array("i", _prepared(text, call).prompt_bytes)
    if sys.byteorder == "big":
        ids.byteswap()
    return _answer(text, ids.tolist(), request)


def _tokenize_text(text: Text[Any], request: TokenizeRequest) -> bytes:
    content = request.content if request.content is not None else request.prompt or ""
    encode = text.tokenizer.encode_with_specials if request.parse_special else text.tokenizer.encode
    ids = encode(content)
    if request.add_special and text.add_bos_id is not None:
        ids.insert(0, text.add_bos_id)
    return _answer(text, ids, request)


def _answer(text: Text[Any], ids: list[int], request: TokenizeRequest) -> bytes:
    tokens: list[int | TokenPiece] = [*ids]
    if request.with_pieces:
        tokens = [TokenPiece(token, _piece(text.tokenizer.token_bytes(token))) for token in ids]
    return msgspec.json.encode(TokenizeAnswer(tokens, len(ids)))


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are no whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
