"""OpenAI's Responses: request bodies in, items and the events of their streams out."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from luce.errors import ApiError, InternalError, InvalidRequest
from luce.listener.dialects import responses_answer as answer
from luce.listener.dialects import responses_wire as wire
from luce.listener.dialects.answer_formats import answer_format, text_format
from luce.listener.dialects.openai_answer import wall_clock_s
from luce.listener.dialects.openai_errors import error_body
from luce.listener.dialects.openai_fields import (
    output_cap,
    refuse_several,
    refuse_unserved,
    sampling_overrides,
    stop_strings,
    template_variables,
)
from luce.listener.dialects.ranges import check_ranges
from luce.listener.dialects.responses_output import ResponseOutput, ResponsesCall
from luce.listener.dialects.responses_prompt import conversation
from luce.listener.dialects.responses_tools import offered_tools
from luce.listener.dialects.wire_errors import decode_json
from luce.listener.responses_store import ResponseStore, not_kept
from luce.text.call import GenerationCall
from luce.text.events import Failed, GenEvent
from luce.text.reasoning import ReasoningRequest, reasoning_request


class OpenAIResponses:
    """The dialect of `POST /v1/responses`.

    Args:
        store: where responses are kept for `previous_response_id`.
        clock_s: Unix time.
    """

    def __init__(self, store: ResponseStore, clock_s: Callable[[], int] = wall_clock_s) -> None:
        self._store = store
        self._clock_s = clock_s
        self._decoder = msgspec.json.Decoder(wire.ResponsesRequest)

    def decode(self, body: bytes) -> ResponsesCall:
        """Read and check a request; see `Dialect.decode`.

        Raises:
            ResponseNotFound: the previous response is not kept.
        """
        request = decode_json(self._decoder, body)
        check_ranges(request)
        refuse_several(request)
        refuse_unserved(request, wire.UNSERVED)
        past = self._past(request.previous_response_id)
        items = (*past, *_items(request.input))
        if not items:
            raise InvalidRequest("input must not be empty.", param="input")
        tools = offered_tools(request.tools or [], request.tool_choice)
        max_tokens = output_cap(request)
        form = request.text.format if request.text is not None else None
        wanted = answer_format(request, text_format(form, "text.format"))
        return ResponsesCall(
            model=request.model or None,
            messages=conversation(request.instructions, items, len(past)),
            sampling=sampling_overrides(request, max_tokens, _logprobs(request)),
            max_tokens=max_tokens,
            stop=stop_strings(request),
            stream=bool(request.stream),
            template_kwargs=template_variables(request.chat_template_kwargs),
            tools=tools.offer.specs,
            tool_choice=tools.offer.choice,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            reasoning=_reasoning(request),
            answer_format=wanted.format,
            # What the shared path calls the conversation.
            client_names={"messages": "input"} | tools.names | wanted.names,
            request=request,
            items=items,
            client_tools=tools.client_tools,
        )

    def stream_encoder(self, call: GenerationCall) -> ResponseStreamEncoder:
        """An encoder for one streamed answer."""
        return ResponseStreamEncoder(self._output(call))

    def body_encoder(self, call: GenerationCall) -> ResponseBodyEncoder:
        """An encoder for one whole answer."""
        return ResponseBodyEncoder(self._output(call))

    def error_body(self, error: ApiError) -> bytes:
        """OpenAI's error envelope."""
        return error_body(error)

    def _past(self, response_id: str | None) -> tuple[wire.Item, ...]:
        if response_id is None:
            return ()
        stored = self._store.get(response_id)
        if stored is None:
            raise not_kept(response_id, param="previous_response_id")
        return stored.items

    def _output(self, call: GenerationCall) -> ResponseOutput:
        if not isinstance(call, ResponsesCall):
            raise InternalError("The request is not one of this API.")
        return ResponseOutput(call, self._store, self._clock_s())


class ResponseStreamEncoder:
    """`response.created`, items one after the other, and a last event that has all of it."""

    def __init__(self, output: ResponseOutput) -> None:
        self._output = output
        self._encoder = msgspec.json.Encoder()
        self._num_events = 0

    def encode(self, event: GenEvent) -> bytes:
        """Bytes of one event; see `StreamEncoder.encode`."""
        return b"".join(map(self._frame, self._output.take(event)))

    def keep_alive(self) -> bytes:
        """Some clients count only events they know as signs of life, so it is one of those."""
        return self._frame(self._output.still_in_progress())

    def _frame(self, event: answer.Event) -> bytes:
        event.sequence_number = self._num_events
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (event.type.encode(), self._encoder.encode(event))


class ResponseBodyEncoder:
    """Collects a generation into one response, with the items that its stream would have."""

    def __init__(self, output: ResponseOutput) -> None:
        self._output = output

    def add(self, event: GenEvent) -> None:
        """Take the next event; see `BodyEncoder.add`."""
        if isinstance(event, Failed):
            raise event.error
        for _ in self._output.take(event):
            pass

    def body(self) -> bytes:
        """The answer; see `BodyEncoder.body`."""
        if self._output.whole is None:
            raise InternalError("The generation ended without an end.")
        return self._output.whole


def _logprobs(request: wire.ResponsesRequest) -> int | None:
    if wire.LOGPROBS not in (request.include or ()):
        return None
    return request.top_logprobs or 0


def _items(given: str | list[wire.Item] | None) -> list[wire.Item]:
    if given is None:
        raise InvalidRequest("input is required.", param="input")
    if isinstance(given, str):
        return [wire.Item(role="user", content=given)]
    return given


def _reasoning(request: wire.ResponsesRequest) -> ReasoningRequest:
    """Off unless asked for."""
    asked = request.reasoning
    return reasoning_request(
        reasoning=None if asked is None else msgspec.to_builtins(asked),
        reasoning_effort=request.reasoning_effort,
        thinking=request.thinking,
        chat_template_kwargs=request.chat_template_kwargs,
        default=False,
    )
