"""A listener for what clients send: a scripted model that calls a tool, and a record of it all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import http_harness
from http_harness import Harness, Rules
from scripted_text import MARKUP, VOCAB_SIZE, tagged_text
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from luce.listener.access import Access
from luce.listener.app import build_app
from luce.listener.connection import client_of
from luce.testing.byte_tokenizer import unpack_prompt
from luce.testing.fake_script import FakeScript, PromptReply

TOOLS, TOOL_RESPONSE = "<tools>", "<tool_response>"
ENDS = {
    "/v1/chat/completions": b"data: [DONE]\n\n",
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/v1/responses": b"event: response.completed\ndata: ",
}
"""What a stream that is whole ends with, or in the case of Responses, its last event begins."""
STREAMED_BYTES = 4000
"""A stream that has sent so much is beyond its first deltas, in every dialect."""
THOUGHT = "Forty and two are to be added."
ADVANCE = "I shall add them twice."
WINDOW = 400_000
"""Tokens of context: coding agents send 100 kB before the first word, a byte a token here."""


def calling_turn(call: str) -> str:
    """What the model writes first: a thought, a sentence, and the same call twice."""
    return f"<think>\n{THOUGHT}\n</think>\n\n{ADVANCE}\n{call}\n{call}"


@dataclass
class Exchange:
    """One request of a client, and what luce answered."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    status: int = 0
    answer: bytes = b""
    is_ended: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Recorder:
    """An ASGI app around luce's that keeps every exchange, in the order of their requests."""

    app: ASGIApp
    exchanges: list[Exchange] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        exchange = Exchange(scope["method"], scope["path"] + query, headers)
        self.exchanges.append(exchange)

        async def recording_receive() -> Message:
            message = await receive()
            exchange.body += message.get("body", b"")
            return message

        async def recording_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
            exchange.answer += message.get("body", b"")
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                exchange.is_ended = True

        client = client_of(scope)
        write = client.write

        def recording_write(data: bytes) -> None:
            exchange.answer += data
            write(data)

        # Streams go past ASGI: see `Client.write`.
        with patch.object(client, "write", recording_write):
            await self.app(scope, recording_receive, recording_send)


@contextmanager
def recording() -> Iterator[list[Recorder]]:
    """Every harness that starts inside has its app recorded."""
    recorders: list[Recorder] = []

    def build_recorded_app(services: Any) -> Recorder:
        recorders.append(Recorder(build_app(services)))
        return recorders[-1]

    with patch.object(http_harness, "build_app", build_recorded_app):
        yield recorders


@dataclass(frozen=True)
class ScriptedServer:
    """A running listener and its record."""

    harness: Harness
    recorder: Recorder

    @property
    def url(self) -> str:
        return self.harness.url

    @property
    def exchanges(self) -> list[Exchange]:
        return self.recorder.exchanges

    def asked(self, path: str) -> list[Exchange]:
        """The exchanges of an endpoint."""
        return [e for e in self.exchanges if e.method == "POST" and e.path.split("?")[0] == path]

    def unhappy(self) -> list[tuple[str, int, bytes]]:
        """The exchanges that were refused, failed or left open: path, status, answer."""
        return [
            (e.path, e.status, e.answer)
            for e in self.exchanges
            if e.status != 200 or not e.is_ended
        ]

    def is_streaming(self, path: str) -> bool:
        """A stream of this endpoint has begun and runs."""
        return any(len(e.answer) >= STREAMED_BYTES and not e.is_ended for e in self.asked(path))

    def prompts(self) -> list[str]:
        """What the model was given, oldest first."""
        model = self.harness.models[0]
        token_bytes = model.text.tokenizer.token_bytes
        return [
            b"".join(map(token_bytes, unpack_prompt(submit.prompt))).decode()
            for submit in model.submits()
        ]


@asynccontextmanager
async def serving(
    call: str, answer: str, keys: tuple[str, ...] = (), **fields: Any
) -> AsyncIterator[ScriptedServer]:
    """A model that answers a tool's result with `answer`, an offer of tools with `call`.

    Args:
        call: in Qwen's syntax.
        answer: also given to whoever offers no tools.
        keys: one of them is asked for, if there are any.
        fields: of the script.
    """
    text = tagged_text((*MARKUP, TOOLS, TOOL_RESPONSE), context_length=WINDOW)
    encode = text.tokenizer.encode_with_specials
    (tools,), (tool_response,) = encode(TOOLS), encode(TOOL_RESPONSE)
    script = FakeScript(
        vocab_size=VOCAB_SIZE,
        max_ctx=WINDOW,
        kv_pool_tokens=4 * WINDOW,
        reply=encode(answer),
        prompt_replies=[
            PromptReply(token=tool_response, reply=encode(answer)),
            PromptReply(token=tools, reply=encode(call)),
        ],
        **fields,
    )
    rules = Rules(max_body_bytes=10**7, access=Access(keys))
    with recording() as recorders:
        async with Harness(script, texts=(text,), rules=rules) as harness:
            yield ScriptedServer(harness, recorders[0])
