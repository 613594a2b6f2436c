"""ResponseOutput: the events of one generation become a response's items and its own events."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from luce.listener.dialects import responses_answer as answer
from luce.listener.dialects import responses_wire as wire
from luce.listener.dialects.formats_wire import TextFormat
from luce.listener.dialects.logprobs import token_logprobs
from luce.listener.dialects.responses_answer import Event
from luce.listener.dialects.responses_items import (
    OpenCall,
    OpenCustomCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    OpenSummary,
)
from luce.listener.dialects.responses_tools import ClientTool
from luce.listener.responses_store import ResponseStore, StoredResponse
from luce.text.call import GenerationCall
from luce.text.events import (
    ContentLogprob,
    Failed,
    Finished,
    GenEvent,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesCall(GenerationCall):
    """A generation, and what its answer needs of the request.

    Attributes:
        request: as it came.
        items: the conversation, without instructions.
        client_tools: what the client calls the tools.
    """

    request: wire.ResponsesRequest
    items: tuple[wire.Item, ...]
    client_tools: Mapping[str, ClientTool] = field(default_factory=dict)


class ResponseOutput:
    """One response while it comes to be.

    Args:
        call: the request.
        store: gets the response when it is whole, unless the client does not want that.
        created_at: Unix time.

    Attributes:
        whole: the response as JSON, once it is whole.
    """

    def __init__(self, call: ResponsesCall, store: ResponseStore, created_at: int) -> None:
        self._call = call
        self._store = store
        self._created_at = created_at
        self._id = f"resp_{secrets.token_hex(24)}"
        self._model = ""
        self._done: list[answer.AnswerItem] = []
        self._open: OpenItem | None = None
        self._in_progress = msgspec.Raw(b"null")
        self.whole: bytes | None = None

    def take(self, event: GenEvent) -> Iterator[Event]:
        """Take the next event: what a stream tells of it. Must be run to its end."""
        if isinstance(event, TextDelta):
            yield from self._opened(OpenMessage, event.text, event.logprobs)
        elif isinstance(event, ReasoningDelta):
            kind = OpenSummary if self._wants_summary else OpenReasoning
            yield from self._opened(kind, event.text)
        elif isinstance(event, ToolCallDelta):
            yield from self._grown(event.arguments)
        elif isinstance(event, ToolCallStarted):
            yield from self._closed(answer.COMPLETED)
            tool = self._call.client_tools[event.name]
            kind_of_call = OpenCustomCall if tool.is_custom else OpenCall
            yield from self._begun(kind_of_call(self._index, event.call_id, tool))
        elif isinstance(event, Started):
            yield from self._started(event)
        elif isinstance(event, Failed):
            yield self._failed(event)
        else:
            yield from self._finished(event)

    def still_in_progress(self) -> Event:
        """A sign of life."""
        return Event(type="response.in_progress", response=self._in_progress)

    @property
    def _index(self) -> int:
        return len(self._done)

    @property
    def _wants_summary(self) -> bool:
        asked = self._call.request.reasoning
        wish = asked and (asked.summary or asked.generate_summary)
        return wish not in (None, "none")

    def _opened(
        self, kind: type[OpenItem], text: str, logprobs: tuple[ContentLogprob, ...] = ()
    ) -> Iterator[Event]:
        """More text of an item of this kind; a new one unless one is open."""
        if type(self._open) is not kind:
            yield from self._closed(answer.COMPLETED)
            yield from self._begun(self._new(kind))
        if isinstance(self._open, OpenMessage):
            yield from self._open.grow_with(text, token_logprobs(logprobs))
        else:
            yield from self._grown(text)

    def _new(self, kind: type[OpenItem]) -> OpenItem:
        if issubclass(kind, OpenReasoning):
            include = self._call.request.include or ()
            return kind(self._index, is_sealed=wire.ENCRYPTED_REASONING in include)
        return kind(self._index)

    def _begun(self, item: OpenItem) -> Iterator[Event]:
        self._open = item
        yield from item.begin()

    def _grown(self, text: str) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.grow(text)

    def _closed(self, status: str) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.end(status)
            self._done.append(self._open.item(status))
            self._open = None

    def _started(self, event: Started) -> Iterator[Event]:
        self._model = event.model
        self._in_progress = msgspec.Raw(msgspec.json.encode(self._response(answer.IN_PROGRESS)))
        yield Event(type="response.created", response=self._in_progress)
        yield self.still_in_progress()

    def _finished(self, event: Finished) -> Iterator[Event]:
        status = answer.INCOMPLETE if event.reason == "length" else answer.COMPLETED
        yield from self._closed(status)
        response = self._response(status)
        response.usage = answer.wire_usage(event.usage)
        if status == answer.INCOMPLETE:
            response.incomplete_details = answer.IncompleteDetails("max_output_tokens")
        self.whole = msgspec.json.encode(response)
        if self._is_stored:
            own = msgspec.convert(msgspec.to_builtins(self._done), list[wire.Item])
            stored = StoredResponse(self.whole, (*self._call.items, *own))
            self._store.put(self._id, stored)
        yield Event(type=f"response.{status}", response=msgspec.Raw(self.whole))

    def _failed(self, event: Failed) -> Event:
        """The item that was open never was: clients keep what they are told is done."""
        response = self._response(answer.FAILED)
        response.error = answer.response_error(event.error)
        return Event(type="response.failed", response=msgspec.Raw(msgspec.json.encode(response)))

    @property
    def _is_stored(self) -> bool:
        return self._call.request.store is not False

    def _response(self, status: str) -> answer.Response:
        request = self._call.request
        text = request.text or wire.TextConfig()
        return answer.Response(
            id=self._id,
            created_at=self._created_at,
            status=status,
            model=self._model,
            output=self._done,
            instructions=request.instructions,
            max_output_tokens=self._call.max_tokens,
            metadata=request.metadata or {},
            parallel_tool_calls=self._call.parallel_tool_calls,
            previous_response_id=request.previous_response_id,
            reasoning=request.reasoning or wire.Reasoning(),
            store=self._is_stored,
            temperature=request.temperature,
            text=wire.TextConfig(text.format or TextFormat("text"), text.verbosity),
            tool_choice=request.tool_choice or "auto",
            tools=request.tools or [],
            top_logprobs=request.top_logprobs,
            top_p=request.top_p,
        )
