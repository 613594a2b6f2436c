"""The endpoint of a dialect: a request in, a streamed or whole answer out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from luce.errors import ApiError
from luce.listener.body import BodyLimits, read_json_body
from luce.listener.choices import ChoiceEvent, Choices
from luce.listener.connection import CancelWhenGone, Client, client_of
from luce.listener.context import RequestContext, context_of
from luce.listener.dialects.base import ChoiceDialect, Dialect, KeepsAlive
from luce.listener.dialects.client_names import in_clients_words
from luce.listener.generate import Generator
from luce.listener.respond import send_body, send_error
from luce.listener.sse import EventStream, comment
from luce.text.call import GenerationCall

EventT = TypeVar("EventT")


class EventSource(Protocol[EventT]):
    """Where events come from: a generation, or several."""

    async def each(self, take: Callable[[list[EventT]], None]) -> None:
        """Give all events to `take`, in order and as they come; returns after the last."""


@dataclass(frozen=True, slots=True)
class ClientRules:
    """How clients are treated.

    Attributes:
        body: what an upload may cost.
        keep_alive_interval_s: a silent stream gets a comment this often.
        stall_s: a client that reads nothing for this long is dropped.
    """

    body: BodyLimits
    keep_alive_interval_s: float
    stall_s: float


class GenerationEndpoint:
    """An ASGI app for one path of one dialect."""

    def __init__(self, dialect: Dialect, generator: Generator, rules: ClientRules) -> None:
        self._dialect = dialect
        self._generator = generator
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors before the answer begins get this dialect's shape."""
        context_of(scope).is_generation = True
        try:
            body = await read_json_body(scope, receive, self._rules.body)
            call = self._dialect.decode(body)
            del body
            with in_clients_words(call):
                async with CancelWhenGone(client_of(scope)):
                    await self._answer(call, context_of(scope), client_of(scope), send)
        except ApiError as error:
            context_of(scope).outcome["error"] = error.code
            await send_error(send, receive, error, self._dialect.error_body(error))

    async def _answer(
        self, call: GenerationCall, context: RequestContext, client: Client, send: Send
    ) -> None:
        async with self._generator.generate(call, context) as generation:
            if call.stream:
                encoder = self._dialect.stream_encoder(call)
                alive = encoder.keep_alive if isinstance(encoder, KeepsAlive) else comment
                async with self._event_stream(client, send, alive) as out:
                    await _put_all(generation, encoder.encode, out)
                return
            answer = self._dialect.body_encoder(call)
            await _take_all(generation, answer.add)
            await self._send_whole(answer.body(), client, send)

    def _event_stream(
        self, client: Client, send: Send, keep_alive: Callable[[], bytes] = comment
    ) -> EventStream:
        rules = self._rules
        return EventStream(send, client, rules.keep_alive_interval_s, rules.stall_s, keep_alive)

    async def _send_whole(self, body: bytes, client: Client, send: Send) -> None:
        flushed = partial(client.flushed, self._rules.stall_s)
        await send_body(send, 200, body, before_end=flushed)


class ChoicesEndpoint(GenerationEndpoint):
    """The same for a dialect whose requests may ask for several answers at once."""

    def __init__(self, dialect: ChoiceDialect, generator: Generator, rules: ClientRules) -> None:
        super().__init__(dialect, generator, rules)
        self._choice_dialect = dialect

    async def _answer(
        self, call: GenerationCall, context: RequestContext, client: Client, send: Send
    ) -> None:
        if call.num_choices == 1:
            await super()._answer(call, context, client, send)
            return
        async with Choices(self._generator, call, context) as choices:
            if call.stream:
                encoder = self._choice_dialect.stream_encoder(call)

                def encode(item: ChoiceEvent) -> bytes:
                    return encoder.encode(item[1], item[0])

                async with self._event_stream(client, send) as out:
                    await _put_all(choices, encode, out)
                return
            answer = self._choice_dialect.body_encoder(call)
            await _take_all(choices, lambda item: answer.add(item[1], item[0]))
            await self._send_whole(answer.body(), client, send)


async def _put_all(
    source: EventSource[EventT], encode: Callable[[EventT], bytes], out: EventStream
) -> None:
    def put(events: list[EventT]) -> None:
        out.put(b"".join([encode(event) for event in events]))

    await source.each(put)


async def _take_all(source: EventSource[EventT], take: Callable[[EventT], None]) -> None:
    def take_all(events: list[EventT]) -> None:
        for event in events:
            take(event)

    await source.each(take_all)
