"""Reading request bodies: bounded in size and time, declared or chunked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import Receive, Scope

from luce.errors import (
    BodyTooLarge,
    ClientGone,
    InvalidRequest,
    RequestTimeout,
    UnsupportedMediaType,
)
from luce.units import cut

_JSON_TYPES = ("application/json", "text/json")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What an upload may cost.

    Attributes:
        max_bytes: largest body.
        stall_s: longest pause between two pieces.
        total_s: longest time for all of them.
    """

    max_bytes: int
    stall_s: float
    total_s: float


async def read_json_body(scope: Scope, receive: Receive, limits: BodyLimits) -> bytes:
    """The whole body of a request that should carry JSON.

    Raises:
        UnsupportedMediaType: it says it is something else, or compressed.
        BodyTooLarge: over the limit; not read to its end.
        RequestTimeout: the upload stalled.
        ClientGone: the client left.
    """
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    for name, value in headers:
        if name == b"content-type":
            _check_type(value.decode("latin-1"))
        elif name == b"content-encoding":
            _check_encoding(value.decode("latin-1"))
        elif name == b"content-length" and _declared(value) > limits.max_bytes:
            raise _too_large(limits)
    return await _read(receive, limits)


async def discard_body(receive: Receive, seconds: float) -> None:
    """Read and forget what the client still sends, for a while: closing at once would reset
    the connection and the client would never see the answer."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
    except TimeoutError:
        return


async def _read(receive: Receive, limits: BodyLimits) -> bytes:
    pieces: list[bytes] = []
    num_bytes = 0
    clock = asyncio.get_running_loop().time
    until = clock() + limits.total_s
    while True:
        try:
            async with asyncio.timeout(min(limits.stall_s, max(until - clock(), 0))):
                message = await receive()
        except TimeoutError:
            raise RequestTimeout("The request's body took too long to arrive.") from None
        if message["type"] == "http.disconnect":
            raise ClientGone("The client left while it sent its request.")
        piece = message.get("body", b"")
        num_bytes += len(piece)
        if num_bytes > limits.max_bytes:
            raise _too_large(limits)
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


def _check_type(content_type: str) -> None:
    kind = content_type.split(";", 1)[0].strip().lower()
    if kind and kind not in _JSON_TYPES and not kind.endswith("+json"):
        raise UnsupportedMediaType(
            f"The body should be application/json, not {cut(kind)}; set the Content-Type header."
        )


def _check_encoding(encoding: str) -> None:
    if encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"The body must not be encoded ({cut(encoding)}); leave Content-Encoding out."
        )


def _declared(value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        raise InvalidRequest("Content-Length is not a number.") from None


def _too_large(limits: BodyLimits) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limits.max_bytes} bytes.")
