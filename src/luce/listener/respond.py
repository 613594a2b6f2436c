"""Whole answers: JSON bodies and errors as ASGI messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from starlette.types import Receive, Send

from luce.errors import ApiError, BodyTooLarge, Forbidden, RequestTimeout, Unauthorized
from luce.listener.body import discard_body
from luce.listener.dialects.base import JSON_TYPE

Headers = Sequence[tuple[bytes, bytes]]

_LINGER_S = 2.0
_UNREAD_BODY = (BodyTooLarge, Forbidden, RequestTimeout, Unauthorized)
"""Errors that answer an upload which may still be going on."""


async def send_body(
    send: Send,
    status: int,
    body: bytes,
    headers: Headers = (),
    before_end: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Send a JSON body.

    Args:
        send: of the request.
        status: HTTP status.
        body: encoded JSON.
        headers: besides type and length.
        before_end: awaited when the body is on its way and the answer has not ended yet: the
            connection may close with the end.
    """
    all_headers = [
        (b"content-type", JSON_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    if before_end is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await before_end()
        body = b""
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_error(send: Send, receive: Receive, error: ApiError, body: bytes) -> None:
    """Send an error with the status and the headers that belong to it.

    Args:
        send: of the request.
        receive: of the request; what the client still uploads is read for a moment.
        error: decides status and headers.
        body: the error in the words of a dialect.
    """
    headers: list[tuple[bytes, bytes]] = []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    before_end = None
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, _UNREAD_BODY):
        headers.append((b"connection", b"close"))
        before_end = partial(discard_body, receive, _LINGER_S)
    await send_body(send, error.status, body, headers, before_end)
