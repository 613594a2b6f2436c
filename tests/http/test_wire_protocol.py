"""HTTP as other clients speak it: offers of HTTP/2, HTTP/1.0, endless heads, compressed bodies."""

from __future__ import annotations

import json
import logging

import pytest
from http_harness import CHAT, Harness, Rules, chat_body, eventually

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def request(version: str, headers: bytes, **fields: object) -> tuple[bytes, bytes]:
    body = json.dumps(chat_body("hello", **fields)).encode()
    line = f"POST {CHAT} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
    return line + headers + b"\r\n", body


@pytest.mark.parametrize("together", [True, False])
async def test_offered_http2_is_ignored(together: bool, caplog: pytest.LogCaptureFixture) -> None:
    head, body = request("1.1", OFFER)
    with caplog.at_level(logging.INFO):
        async with Harness() as server, server.slow_reader() as client:
            for _ in range(2):  # The connection stays usable.
                for piece in [head + body] if together else [head, body]:
                    await client.send_raw(piece)
                raw = b""
                while b'"usage"' not in raw:
                    raw += await client.read(65536)
                assert raw.startswith(b"HTTP/1.1 200")
                assert b'"content":"hello"' in raw
    assert not [record for record in caplog.records if "pip install" in record.getMessage()]


async def test_connect_is_answered_without_advice(caplog: pytest.LogCaptureFixture) -> None:
    async with Harness() as server, server.slow_reader() as client:
        await client.send_raw(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")
        assert (await client.read(65536)).startswith(b"HTTP/1.1 4")
    assert not [record for record in caplog.records if "pip install" in record.getMessage()]


async def test_http_1_0_stream_has_no_chunks() -> None:
    head, body = request("1.0", b"", stream=True)
    async with Harness() as server, server.slow_reader() as client:
        await client.send_raw(head + body)
        answer_head, answer = (await client.read_all()).split(b"\r\n\r\n", 1)
        assert b"transfer-encoding" not in answer_head.lower()
        assert answer.startswith(b"data: {")
        assert answer.endswith(b"data: [DONE]\n\n")


async def test_http_1_0_whole_answer_has_its_length() -> None:
    head, body = request("1.0", b"")
    async with Harness() as server, server.slow_reader() as client:
        await client.send_raw(head + body)
        answer_head, answer = (await client.read_all()).split(b"\r\n\r\n", 1)
        assert f"content-length: {len(answer)}".encode() in answer_head.lower()
        assert json.loads(answer)["usage"]


async def test_head_over_the_limit_in_one_write() -> None:
    head, body = request("1.1", b"X-Filler: " + b"a" * 70_000 + b"\r\n")
    async with Harness() as server, server.slow_reader() as client:
        await client.send_raw(head + body)
        assert (await client.read(65536)).startswith(b"HTTP/1.1 400")
        assert server.generator.num_started == 0


async def test_body_beside_a_short_head_does_not_count_as_head() -> None:
    head, _ = request("1.1", b"")
    body = json.dumps(chat_body("a" * 80_000)).encode()
    head = head.replace(b"Content-Length: ", b"X-Old: ", 1)[:-2] + (
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    script = FakeScript(max_ctx=100_000, kv_pool_tokens=200_000, reply=[97])
    async with Harness(script, rules=Rules(max_body_bytes=200_000)) as server:
        async with server.slow_reader() as client:
            await client.send_raw(head + body)
            assert (await client.read(65536)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("br", 415), ("identity", 200)])
async def test_encoded_bodies(encoding: str, status: int) -> None:
    async with Harness() as server:
        answer = await server.client.post(
            CHAT, json=chat_body(), headers={"Content-Encoding": encoding}
        )
        assert answer.status_code == status
        if status == 415:
            assert "Content-Encoding" in answer.json()["error"]["message"]


async def test_a_slow_stream_to_a_client_that_stops_reading_is_seen() -> None:
    """Few bytes a second: only what the kernel does not hide shows that nobody reads."""
    script = FakeScript(reply=[97] * 9000, token_delay_s=0.001, max_ctx=10_000, hold_after=8000)
    async with Harness(script, rules=Rules(stall_s=0.5)) as server:
        async with server.slow_reader() as client:
            head, body = request("1.1", b"", stream=True)
            await client.send_raw(head + body)
            await server.running(1)
            await eventually(lambda: server.in_flight() == 0)
            assert server.models[0].worker.retired[0].finish == "cancelled"
