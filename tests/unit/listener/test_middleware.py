from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from starlette.types import Message, Receive, Scope, Send

from luce.errors import ClientGone, QueueFull
from luce.listener.access import Access
from luce.listener.connection import CLIENT_EXTENSION, SlowClient
from luce.listener.context import RequestContext, context_of
from luce.listener.cors import Cors
from luce.listener.middleware import RequestMiddleware
from luce.listener.telemetry import Telemetry

pytestmark = pytest.mark.anyio

START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"x", "more_body": True}
END = {"type": "http.response.body", "body": b"", "more_body": False}


class FakeClient:
    def __init__(self) -> None:
        self.is_gone = False
        self.was_closed = False

    async def close(self) -> None:
        self.was_closed = True


class Seen:
    """Stands for the telemetry."""

    def __init__(self) -> None:
        self.contexts: list[RequestContext] = []

    def finished(self, context: RequestContext) -> None:
        self.contexts.append(context)


class Exchange:
    """One request through the middleware."""

    def __init__(self, method: str = "POST") -> None:
        self.client = FakeClient()
        self.sent: list[Message] = []
        self.seen = Seen()
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": "/x",
            "headers": [],
            "state": {},
            "extensions": {CLIENT_EXTENSION: self.client},
        }

    async def run(self, app: Any) -> RequestContext:
        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self.sent.append(message)

        middleware = RequestMiddleware(app, cast(Telemetry, self.seen), Access(), Cors())
        await middleware(self.scope, receive, send)
        (context,) = self.seen.contexts
        return context


def app(*messages: Message, then: BaseException | None = None, gone_before: int = 99) -> Any:
    """An app that sends these and raises that; its client leaves before message `gone_before`."""

    async def serve(scope: Scope, _receive: Receive, send: Send) -> None:
        for index, message in enumerate(messages):
            if index == gone_before:
                scope["extensions"][CLIENT_EXTENSION].is_gone = True
            await send(message)
        if then is not None:
            raise then

    return serve


def status_of(caplog: pytest.LogCaptureFixture) -> Any:
    (line,) = (r for r in caplog.records if r.getMessage() == "request finished")
    return vars(line)["status"]


@pytest.mark.parametrize(
    ("gone_before", "status", "error"), [(99, 200, None), (2, 499, "client_gone")]
)
async def test_a_client_that_leaves_is_gone_unless_it_was_there_for_the_last_byte(
    caplog: pytest.LogCaptureFixture, gone_before: int, status: int, error: str | None
) -> None:
    caplog.set_level(logging.INFO)
    exchange = Exchange()
    context = await exchange.run(
        app(START, BODY, END, then=ClientGone("left"), gone_before=gone_before)
    )
    assert status_of(caplog) == status
    assert context.outcome.get("error") == error
    assert exchange.client.was_closed == (status == 499)


async def test_a_slow_reader_is_told_from_one_who_left() -> None:
    context = await Exchange().run(app(START, BODY, then=SlowClient("slow")))
    assert context.outcome["error"] == "slow_reader"


async def test_an_error_before_the_answer_becomes_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    exchange = Exchange()
    context = await exchange.run(app(then=QueueFull("full")))
    assert exchange.sent[0]["status"] == status_of(caplog) == 503
    assert context.outcome["error"] == "overloaded"


async def test_an_error_behind_the_head_breaks_the_connection() -> None:
    exchange = Exchange()
    await exchange.run(app(START, then=QueueFull("full")))
    assert [message["type"] for message in exchange.sent] == ["http.response.start"]
    assert exchange.client.was_closed


async def test_what_the_app_noted_first_stays() -> None:
    async def serve(scope: Scope, _receive: Receive, _send: Send) -> None:
        context_of(scope).outcome["error"] = "worker_lost"
        raise ClientGone("left")

    context = await Exchange().run(serve)
    assert context.outcome["error"] == "worker_lost"


@pytest.mark.parametrize(
    ("method", "status", "level"),
    [
        ("POST", 200, logging.INFO),
        ("GET", 200, logging.DEBUG),
        ("GET", 404, logging.DEBUG),
        ("GET", 503, logging.DEBUG),
        ("GET", 500, logging.INFO),
    ],
)
async def test_which_ends_are_worth_a_line(
    caplog: pytest.LogCaptureFixture, method: str, status: int, level: int
) -> None:
    caplog.set_level(logging.DEBUG)
    await Exchange(method).run(app({**START, "status": status}, END))
    (line,) = (r for r in caplog.records if r.getMessage() == "request finished")
    assert line.levelno == level
