from __future__ import annotations

import asyncio
from typing import Any

import pytest

from luce.errors import (
    BodyTooLarge,
    ClientGone,
    InvalidRequest,
    RequestTimeout,
    UnsupportedMediaType,
)
from luce.listener.body import BodyLimits, discard_body, read_json_body
from luce.testing.virtual_time import VIRTUAL_TIME

pytestmark = pytest.mark.anyio

LIMITS = BodyLimits(max_bytes=10, stall_s=5, total_s=20)


@pytest.fixture
def anyio_backend() -> Any:
    return VIRTUAL_TIME


class Upload:
    """A `receive` that gives pieces, then what `then` says."""

    def __init__(self, *pieces: bytes, more: bool = False, pause_s: float = 0.0) -> None:
        self.pieces = list(pieces)
        self.more = more
        self.pause_s = pause_s
        self.num_read = 0

    async def __call__(self) -> dict[str, Any]:
        await asyncio.sleep(self.pause_s)
        self.num_read += 1
        if self.pieces:
            body = self.pieces.pop(0)
            return {
                "type": "http.request",
                "body": body,
                "more_body": bool(self.pieces) or self.more,
            }
        if self.more:
            await asyncio.sleep(60)
        return {"type": "http.disconnect"}


async def read(upload: Upload, *headers: tuple[bytes, bytes]) -> bytes:
    return await read_json_body({"headers": list(headers)}, upload, LIMITS)


async def test_pieces_are_joined() -> None:
    assert await read(Upload(b"abc", b"", b"defg")) == b"abcdefg"
    assert await read(Upload(b"0123456789")) == b"0123456789"


async def test_limit() -> None:
    with pytest.raises(BodyTooLarge, match="10 bytes"):
        await read(Upload(b"012345", b"67890"))
    declared = Upload(b"never read")
    with pytest.raises(BodyTooLarge):
        await read(declared, (b"content-length", b"11"))
    assert declared.num_read == 0


async def test_length_that_is_no_number() -> None:
    with pytest.raises(InvalidRequest):
        await read(Upload(b""), (b"content-length", b"ten"))


async def test_stall_and_drip() -> None:
    clock = asyncio.get_running_loop().time
    with pytest.raises(RequestTimeout):
        await read(Upload(b"a", more=True))
    assert clock() == 5
    with pytest.raises(RequestTimeout):
        await read(Upload(*[b"a"] * 9, more=True, pause_s=4))
    assert clock() == 25


async def test_client_that_leaves() -> None:
    with pytest.raises(ClientGone):
        await read(Upload())


@pytest.mark.parametrize(
    ("kind", "fine"),
    [
        (b"application/json", True),
        (b"Application/JSON ; charset=utf-8", True),
        (b"application/problem+json", True),
        (b"", True),
        (b"multipart/form-data; boundary=x", False),
    ],
)
async def test_type(kind: bytes, fine: bool) -> None:
    if fine:
        assert await read(Upload(b"{}"), (b"content-type", kind)) == b"{}"
    else:
        with pytest.raises(UnsupportedMediaType):
            await read(Upload(b"{}"), (b"content-type", kind))


async def test_discarding_ends_with_the_body_or_the_time() -> None:
    whole = Upload(b"a", b"b", b"c")
    await discard_body(whole, 5)
    assert whole.num_read == 3
    async with asyncio.timeout(60):
        await discard_body(Upload(b"a", more=True), 5)
