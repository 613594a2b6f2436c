"""Around every request: its id, who may call, errors nobody else has answered, one log line."""

from __future__ import annotations

import logging
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from luce.errors import ApiError, ClientGone, InternalError
from luce.listener.access import Access
from luce.listener.connection import Client, SlowClient, client_of
from luce.listener.context import RequestContext, attach, context_of, new_context
from luce.listener.cors import Cors
from luce.listener.dialects.by_path import error_body_for
from luce.listener.respond import Headers, send_error
from luce.listener.telemetry import Telemetry
from luce.observability.log import request_id_var

log = logging.getLogger(__name__)

CLIENT_CLOSED = 499
"""Status in the log of a request whose client left; it is never sent."""

_HARMLESS = ("GET", "HEAD")


class RequestMiddleware:
    """The outermost layer of the app."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry, access: Access, cors: Cors) -> None:
        self._app = app
        self._telemetry = telemetry
        self._access = access
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, whatever happens to it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = new_context(scope["headers"])
        context.is_known = self._access.admits(scope["headers"])
        # A key may be shared, an address too; a key that nobody asks for can be made up.
        address = scope["client"][0] if scope.get("client") else ""
        context.client = f"{address} {self._access.name_of(scope['headers'])}"
        attach(scope, context)
        token = request_id_var.set(context.request_id)
        # Anthropic's clients read the second name.
        request_id = context.request_id.encode("ascii")
        headers = [(b"x-request-id", request_id), (b"request-id", request_id)]
        headers += self._cors.headers(scope["headers"])
        answer = _Answer(send, client_of(scope), headers)
        try:
            await self._serve(scope, receive, answer)
        finally:
            self._telemetry.finished(context)
            _log_end(scope, context, answer.status)
            request_id_var.reset(token)

    async def _serve(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        if scope["method"] == "OPTIONS":
            headers = self._cors.preflight(scope["headers"])
            await answer({"type": "http.response.start", "status": 204, "headers": headers})
            await answer({"type": "http.response.body", "body": b"", "more_body": False})
            return
        try:
            self._check(scope)
            await self._app(scope, receive, answer)
        except ClientGone as gone:
            if answer.is_complete:
                return
            answer.status = CLIENT_CLOSED
            is_slow = isinstance(gone, SlowClient)
            _note_error(scope, "slow_reader" if is_slow else "client_gone")
            log.debug("client gone", extra={"reason": str(gone)})
            await client_of(scope).close()
        except ApiError as error:
            await _answer_error(scope, receive, answer, error)
        except Exception:
            log.exception("request failed by a bug of ours")
            await _answer_error(scope, receive, answer, InternalError.logged())

    def _check(self, scope: Scope) -> None:
        """Refuse who may not call, before anything of the request is read.

        Raises:
            ApiError: Unauthorized or Forbidden.
        """
        if not context_of(scope).is_known:
            self._access.check(scope["path"], scope["headers"])
        if scope["method"] not in _HARMLESS:
            self._cors.check(scope["headers"])


class _Answer:
    """`send` that adds our headers and remembers what has been said.

    Attributes:
        status: 0 until the answer has begun.
        is_complete: all of it was handed over while the client was there. That the connection
            closes then, by the client or by us, is no loss.
    """

    def __init__(self, send: Send, client: Client, headers: Headers) -> None:
        self._send = send
        self._client = client
        self._headers = headers
        self.status = 0
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), *self._headers]
            message = {**message, "headers": headers}
        is_last = message["type"] == "http.response.body" and not message.get("more_body")
        is_heard = is_last and not self._client.is_gone
        await self._send(message)
        self.is_complete = self.is_complete or is_heard


def _note_error(scope: Scope, code: str) -> None:
    context_of(scope).outcome.setdefault("error", code)


async def _answer_error(scope: Scope, receive: Receive, answer: _Answer, error: ApiError) -> None:
    _note_error(scope, error.code)
    if answer.status:
        # Headers are out: a broken-off answer is all that can still be said.
        await client_of(scope).close()
        return
    await send_error(answer, receive, error, error_body_for(scope["path"], error))


def _log_end(scope: Scope, context: RequestContext, status: int) -> None:
    # GETs are mostly probes that come every second, and a 503 is what they come for.
    is_worth_a_line = scope["method"] == "POST" or status == InternalError.status
    level = logging.INFO if is_worth_a_line else logging.DEBUG
    if not log.isEnabledFor(level):
        return
    timings, outcome = context.timings, context.outcome
    fields: dict[str, Any] = {
        "method": scope["method"],
        "path": scope["path"],
        "status": status or CLIENT_CLOSED,
        "queue_ms": timings.queue_ms,
        "ttft_ms": timings.ttft_ms,
        "total_ms": timings.total_ms,
        **outcome,
        "tokens_per_s": timings.tokens_per_s(outcome.get("tokens", 0)),
    }
    fields["passed_over"] = ",".join(f"{k}:{v}" for k, v in outcome.get("passed_over", {}).items())
    known = {key: value for key, value in fields.items() if value is not None and value != ""}
    log.log(level, "request finished", extra=known)
