"""OpenAI's chat completions: request bodies in, encoders of their answers out."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from luce.errors import ApiError, InvalidRequest
from luce.listener.dialects import openai_wire as wire
from luce.listener.dialects.answer_formats import answer_format, response_format
from luce.listener.dialects.openai_answer import AnswerHead, new_id, wall_clock_s
from luce.listener.dialects.openai_chat_encoders import ChatBodyEncoder, ChatStreamEncoder
from luce.listener.dialects.openai_errors import error_body
from luce.listener.dialects.openai_fields import (
    includes_usage,
    output_cap,
    refuse_unserved,
    sampling_overrides,
    stop_strings,
    template_variables,
)
from luce.listener.dialects.openai_prompt import chat_messages
from luce.listener.dialects.openai_tools import tools_on_offer
from luce.listener.dialects.ranges import check_ranges
from luce.listener.dialects.wire_errors import decode_json
from luce.text.call import GenerationCall
from luce.text.reasoning import reasoning_request

__all__ = ["OpenAIChat", "error_body"]

THINKS_BY_DEFAULT = False
"""Whether a model that can think or not does so when the client says nothing."""


class OpenAIChat:
    """The dialect of `POST /v1/chat/completions`."""

    def __init__(self, clock_s: Callable[[], int] = wall_clock_s) -> None:
        self._clock_s = clock_s
        self._decoder = msgspec.json.Decoder(wire.ChatRequest)

    def decode(self, body: bytes) -> GenerationCall:
        """Read and check a request; see `Dialect.decode`."""
        return self.call(decode_json(self._decoder, body))

    def call(self, request: wire.ChatRequest) -> GenerationCall:
        """Check a request that was read.

        Raises:
            InvalidRequest: as `decode`.
        """
        refuse_unserved(request, wire.UNSERVED)
        check_ranges(request)
        variables = template_variables(request.chat_template_kwargs)
        max_tokens = output_cap(request)
        tools = tools_on_offer(request)
        wanted = answer_format(request, response_format(request.response_format))
        return GenerationCall(
            model=request.model or None,
            messages=chat_messages(request.messages),
            sampling=sampling_overrides(request, max_tokens, _logprobs(request)),
            max_tokens=max_tokens,
            stop=stop_strings(request),
            stream=bool(request.stream),
            include_usage=includes_usage(request),
            template_kwargs=variables,
            tools=tools.specs,
            tool_choice=tools.choice,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            reasoning=reasoning_request(
                reasoning=request.reasoning,
                reasoning_effort=request.reasoning_effort,
                thinking=request.thinking,
                chat_template_kwargs=variables,
                default=THINKS_BY_DEFAULT,
            ),
            n=request.n or 1,
            answer_format=wanted.format,
            client_names=tools.names | wanted.names,
        )

    def stream_encoder(self, call: GenerationCall) -> ChatStreamEncoder:
        """An encoder for one streamed answer."""
        return ChatStreamEncoder(call, self._head())

    def body_encoder(self, call: GenerationCall) -> ChatBodyEncoder:
        """An encoder for one whole answer."""
        return ChatBodyEncoder(call, self._head())

    def error_body(self, error: ApiError) -> bytes:
        """OpenAI's error envelope."""
        return error_body(error)

    def _head(self) -> AnswerHead:
        return AnswerHead(new_id("chatcmpl"), self._clock_s())


def _logprobs(request: wire.ChatRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    return None
