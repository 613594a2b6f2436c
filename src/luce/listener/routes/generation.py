"""The endpoint of a dialect: a request in, a streamed or whole answer out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from starlette.types import Receive, Scope, Send

from luce.errors import ApiError
from luce.listener.body import BodyLimits, read_json_body
from luce.listener.connection import CancelWhenGone, Client, client_of
from luce.listener.context import RequestContext, context_of
from luce.listener.dialects.base import Dialect
from luce.listener.generate import Generation, Generator
from luce.listener.respond import send_body, send_error
from luce.listener.sse import EventStream
from luce.text.call import GenerationCall


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
                await self._stream(call, generation, client, send)
            else:
                await self._whole(call, generation, client, send)

    async def _stream(
        self, call: GenerationCall, generation: Generation, client: Client, send: Send
    ) -> None:
        encoder = self._dialect.stream_encoder(call)
        rules = self._rules
        async with EventStream(send, client, rules.keep_alive_interval_s, rules.stall_s) as out:
            while events := await generation.next():
                out.put(b"".join(map(encoder.encode, events)))

    async def _whole(
        self, call: GenerationCall, generation: Generation, client: Client, send: Send
    ) -> None:
        encoder = self._dialect.body_encoder(call)
        while events := await generation.next():
            for event in events:
                encoder.add(event)
        flushed = partial(client.flushed, self._rules.stall_s)
        await send_body(send, 200, encoder.body(), before_end=flushed)
