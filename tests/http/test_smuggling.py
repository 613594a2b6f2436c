"""Bytes that two HTTP parsers may read as different requests, and other abuse of framing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re

import pytest
from http_harness import CHAT, Harness, Rules, chat_body, eventually

from luce.listener import connection, respond
from luce.testing.fake_script import FakeScript
from luce.testing.slow_reader import SlowReader

pytestmark = pytest.mark.anyio

BODY = json.dumps(chat_body("hello")).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
HIDDEN = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


def post(
    headers: bytes, body: bytes = BODY, version: bytes = b"1.1", host: bytes = b"Host: x\r\n"
) -> bytes:
    return b"POST %s HTTP/%s\r\n%s%s\r\n%s" % (CHAT.encode(), version, host, headers, body)


def get(line: bytes, headers: bytes = b"Host: x\r\n") -> bytes:
    return line + b"\r\n" + headers + b"\r\n"


REFUSED = {
    "length and chunked": post(LENGTH + CHUNKED, CHUNKS),
    "chunked and length": post(CHUNKED + LENGTH, CHUNKS),
    "hidden request behind chunks": post(b"Content-Length: 4\r\n" + CHUNKED, b"0\r\n\r\n" + HIDDEN),
    "length twice": post(LENGTH + LENGTH),
    "two lengths": post(LENGTH + b"Content-Length: 5\r\n"),
    "list of lengths": post(b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY))),
    "signed length": post(b"Content-Length: +%d\r\n" % len(BODY)),
    "negative length": post(b"Content-Length: -1\r\n"),
    "hexadecimal length": post(b"Content-Length: 0x10\r\n"),
    "length with a low line": post(b"Content-Length: 1_0\r\n"),
    "endless length": post(b"Content-Length: 99999999999999999999999\r\n"),
    "empty length": post(b"Content-Length: \r\n"),
    "chunked twice": post(CHUNKED + CHUNKED, CHUNKS),
    "chunked in the middle": post(b"Transfer-Encoding: chunked, gzip\r\n", CHUNKS),
    "compressed chunks": post(b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS),
    "no coding": post(b"Transfer-Encoding: identity\r\n"),
    "unknown coding": post(b"Transfer-Encoding: xchunked\r\n", CHUNKS),
    "quoted coding": post(b'Transfer-Encoding: "chunked"\r\n', CHUNKS),
    "coding behind a tab": post(b"Transfer-Encoding: \x0bchunked\r\n", CHUNKS),
    "coding with a blank": post(b"Transfer-Encoding : chunked\r\n", CHUNKS),
    "coding in 1.0": post(CHUNKED, CHUNKS, version=b"1.0"),
    "folded header": post(LENGTH + b"X-A: a\r\n b\r\n"),
    "folded first header": get(b"GET /health HTTP/1.1", b" Host: x\r\n"),
    "bare CR in a value": post(LENGTH + b"X-A: a\rContent-Length: 5\r\n"),
    "bare CR as end": b"GET /health HTTP/1.1\rHost: x\r\r",
    "bare LF as end": b"GET /health HTTP/1.1\nHost: x\n\n",
    "NUL in a value": post(LENGTH + b"X-A: a\x00b\r\n"),
    "NUL in a name": post(LENGTH + b"X\x00A: a\r\n"),
    "blank before the colon": post(LENGTH + b"X-A : a\r\n"),
    "no name": post(LENGTH + b": a\r\n"),
    "no host": post(LENGTH, host=b""),
    "two hosts": post(LENGTH, host=b"Host: x\r\nHost: y\r\n"),
    "HTTP/2.0": get(b"GET /health HTTP/2.0"),
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "unknown method": get(b"STEAL /health HTTP/1.1"),
    "raw bytes in a path": get(b"GET /v1/models/\xff HTTP/1.1"),
    "no chunk size": post(CHUNKED, b"zz\r\nab\r\n0\r\n\r\n"),
    "endless chunk size": post(CHUNKED, b"f" * 18 + b"\r\nab\r\n0\r\n\r\n"),
    "negative chunk size": post(CHUNKED, b"-1\r\nab\r\n0\r\n\r\n"),
    "line feed in a chunk's extension": post(
        CHUNKED, b"%x;a\nb\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    ),
    "chunk longer than its size": post(CHUNKED, b"2\r\nabcd\r\n0\r\n\r\n"),
}

SERVED = {
    "one length": post(LENGTH),
    "chunks": post(CHUNKED, CHUNKS),
    "chunks with an extension": post(CHUNKED, b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)),
    "coding in capitals": post(b"TRANSFER-ENCODING: Chunked\r\n", CHUNKS),
    "1.0 without a host": post(LENGTH, version=b"1.0", host=b""),
    "empty host": post(LENGTH, host=b"Host:\r\n"),
}


async def answers(client: SlowReader, wait_s: float = 60) -> bytes:
    return await asyncio.wait_for(client.read_all(), wait_s)


async def ends_without_a_word(client: SlowReader) -> None:
    """The server hangs up; what was sent to it meanwhile makes that a reset."""
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(client.read(65536), 60) == b""


@pytest.mark.parametrize("name", REFUSED)
async def test_what_could_be_read_in_two_ways_is_refused(name: str) -> None:
    async with Harness() as server:
        async with server.slow_reader() as client:
            # Behind it stands a request that must not be looked at any more.
            await client.send_raw(REFUSED[name] + HIDDEN)
            raw = await answers(client)
        assert re.findall(rb"HTTP/1\.1 (\d+)", raw) == [b"400"]
        head, _, body = raw.partition(b"\r\n\r\n")
        assert b"connection: close" in head
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert server.generator.num_started == 0
        assert (await server.ask("fine")).status_code == 200


@pytest.mark.parametrize("name", SERVED)
async def test_what_can_be_read_in_one_way_is_served(name: str) -> None:
    async with Harness() as server:
        async with server.slow_reader() as client:
            await client.send_raw(SERVED[name])
            assert (await client.read(65536)).startswith(b"HTTP/1.1 200")


async def test_pipelined_requests_are_answered_in_order() -> None:
    bodies = [json.dumps(chat_body(f"number {i}")).encode() for i in range(3)]
    requests = [post(b"Content-Length: %d\r\n" % len(body), body) for body in bodies]
    requests.insert(1, get(b"GET /v1/models HTTP/1.1"))
    last = get(b"GET /nothing HTTP/1.1", b"Host: x\r\nConnection: close\r\n")
    async with Harness() as server:
        async with server.slow_reader() as client:
            await client.send_raw(b"".join([*requests, last]))
            raw = await answers(client)
        found = re.findall(rb'HTTP/1\.1 (\d+)|(number \d)|("object":"list")', raw)
        assert [next(filter(None, groups)) for groups in found] == [
            *(b"200", b"number 0"),
            *(b"200", b'"object":"list"'),
            *(b"200", b"number 1"),
            *(b"200", b"number 2"),
            b"404",
        ]
        await server.idle()


@pytest.mark.parametrize("behind", [b"GARBAGE\r\n\r\n", REFUSED["two hosts"], b"XXXX"])
async def test_garbage_behind_a_request_does_not_get_into_its_stream(behind: bytes) -> None:
    script = FakeScript(reply=[97] * 300, hold_after=5)
    body = json.dumps(chat_body(stream=True)).encode()
    async with Harness(script) as server:
        async with server.slow_reader() as client:
            await client.send_raw(post(b"Content-Length: %d\r\n" % len(body), body))
            raw = b""
            while b'"content"' not in raw:
                raw += await client.read(65536)
            await client.send_raw(behind)
            raw += await answers(client)
        assert raw.count(b"HTTP/1.1") == 1
        assert b"error" not in raw
        await server.idle()


async def test_garbage_behind_waiting_requests_ends_them_without_a_word() -> None:
    async with Harness(FakeScript(token_delay_s=0.05)) as server:
        async with server.slow_reader() as client:
            await client.send_raw(post(LENGTH) + post(LENGTH) + b"GARBAGE\r\n\r\n")
            assert b"HTTP/1.1 400" not in await answers(client)
        await server.idle()


async def test_trailers_are_no_headers() -> None:
    trailed = b"%x\r\n%s\r\n0\r\nX-Request-Id: late\r\nContent-Type: text/plain\r\n\r\n"
    async with Harness() as server:
        async with server.slow_reader() as client:
            await client.send_raw(post(CHUNKED, trailed % (len(BODY), BODY)))
            raw = await client.read(65536)
        assert raw.startswith(b"HTTP/1.1 200")
        assert b"late" not in raw


@pytest.mark.parametrize("filler", [b"X-%d: %s\r\n", b"1;%d=%s", b"X: %d%s"])
async def test_endless_trailers_and_extensions_end_the_connection(filler: bytes) -> None:
    async with Harness() as server:
        async with server.slow_reader() as client:
            last_chunk = b"" if filler.startswith(b"1;") else b"0\r\n"
            await client.send_raw(post(CHUNKED, b"%x\r\n%s\r\n" % (len(BODY), BODY) + last_chunk))
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                for number in range(100_000):
                    await client.send_raw(filler % (number, b"a" * 8000))
                    await asyncio.sleep(0)
                    assert number < 5000
        await server.idle()


async def test_a_head_that_drips_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.3)
    async with Harness() as server:
        async with server.slow_reader() as client:
            await client.send_raw(b"GET /health HTTP/1.1\r\nHost: x\r\n")

            async def drip() -> None:
                while True:
                    await client.send_raw(b"X: y\r\n")
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            try:
                await ends_without_a_word(client)
            finally:
                dripping.cancel()
                await asyncio.gather(dripping, return_exceptions=True)


@pytest.mark.parametrize("path", ["/nothing", "/health"])
async def test_an_upload_that_nobody_wants_ends(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_BODY_S", 0.2)
    async with Harness() as server:
        async with server.slow_reader() as client:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
            await client.send_raw(head.encode() + b"x")
            assert (await client.read(65536)).startswith(b"HTTP/1.1 40")
            with contextlib.suppress(ConnectionError):  # It may have ended already.
                await client.send_raw(b"x")
            await ends_without_a_word(client)


async def test_a_short_unread_body_keeps_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_BODY_S", 0.05)
    async with Harness() as server:
        async with server.slow_reader() as client:
            for _ in range(2):
                await client.send("POST", "/nothing", b"x" * 1000)
                assert (await client.read(65536)).startswith(b"HTTP/1.1 404")
                await asyncio.sleep(0.1)


async def test_a_dripping_body_is_a_408_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respond, "_LINGER_S", 60.0)
    async with Harness(rules=Rules(upload_stall_s=1.0, upload_total_s=0.3)) as server:
        async with server.slow_reader() as client:
            await client.send_raw(post(b"Content-Length: 5000\r\n", b"{"))

            async def drip() -> None:
                while True:
                    await client.send_raw(b" ")
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            try:
                raw = b""
                while b"timeout" not in raw:
                    raw += await client.read(65536)
            finally:
                dripping.cancel()
                await asyncio.gather(dripping, return_exceptions=True)
        assert raw.startswith(b"HTTP/1.1 408")
        await eventually(lambda: server.generator.num_running == 0)


async def test_head_of_the_root() -> None:
    async with Harness() as server:
        async with server.slow_reader() as client:
            await client.send_raw(get(b"HEAD / HTTP/1.1") + get(b"HEAD /nothing HTTP/1.1"))
            raw = b""
            while raw.count(b"\r\n\r\n") < 2:
                raw += await client.read(65536)
        assert re.findall(rb"HTTP/1\.1 (\d+)", raw) == [b"200", b"404"]
        assert raw.endswith(b"\r\n\r\n")
        assert b"{" not in raw
