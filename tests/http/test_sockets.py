"""Other sockets than plain TCP: TLS and Unix."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest
from http_harness import (
    CHAT,
    LOOPS,
    Harness,
    Rules,
    chat_body,
    connected,
    events_of,
    eventually,
    text_of,
)

from luce.listener.bind import url_of
from luce.listener.tls import tls_context
from luce.listener.unix_socket import listen_on
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

FILES = Path(__file__).parents[1] / "data" / "tls"
FLOOD = FakeScript(
    reply=[97] * 20_000,
    token_delay_s=0.0,
    max_ctx=30_000,
    kv_pool_tokens=60_000,
    hold_after=1,
    hold_again_after=19_000,
)
"""Megabytes of events, once the test lets them go, and never all of them."""


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


class TlsHarness(Harness):
    def __init__(self, *scripts: FakeScript, **rules: Any) -> None:
        context = tls_context(FILES / "cert.pem", FILES / "key.pem")
        super().__init__(*scripts, rules=Rules(tls=context, **rules))

    def make_client(self) -> httpx2.AsyncClient:
        self.url = url_of(self._sock, "https")
        return httpx2.AsyncClient(base_url=self.url, timeout=60, verify=trusting())


class UnixHarness(Harness):
    def __init__(self, sock: socket.socket, *scripts: FakeScript, **rules: Any) -> None:
        super().__init__(*scripts, rules=Rules(**rules))
        self._made = sock

    def open_socket(self) -> socket.socket:
        return self._made

    def make_client(self) -> httpx2.AsyncClient:
        transport = httpx2.AsyncHTTPTransport(uds=self._made.getsockname())
        return httpx2.AsyncClient(base_url="http://localhost", transport=transport, timeout=60)


def trusting(highest: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(FILES / "cert.pem"))
    if highest is not None:
        context.maximum_version = highest
    return context


async def converse(server: Harness) -> None:
    """Whole, streamed and refused; over connections that are kept."""
    answer = await server.ask("hello")
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    streamed = await server.ask("x" * 400, stream=True)
    assert text_of(events_of(streamed.text)) == "x" * 400
    assert (await server.ask("hi", temperature=-1)).status_code == 400
    await server.idle()


async def test_tls() -> None:
    async with TlsHarness() as server:
        await converse(server)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_versions(version: ssl.TLSVersion) -> None:
    async with TlsHarness() as server:
        context = trusting(version)
        context.set_alpn_protocols(["h2", "http/1.1"])
        async with connected(server.port, ssl=context, server_hostname="localhost") as (_, writer):
            connection = writer.get_extra_info("ssl_object")
            assert connection.version() == version.name.replace("_", ".")
            assert connection.selected_alpn_protocol() == "http/1.1"


async def test_plain_http_to_a_tls_server_harms_nobody() -> None:
    async with TlsHarness() as server:
        async with server.slow_reader() as client:
            await client.send("GET", "/health")
            assert not (await client.read_all()).startswith(b"HTTP")
        assert (await server.ask("hello")).status_code == 200


async def test_a_client_that_leaves_tls_is_seen() -> None:
    script = FakeScript(reply=[97] * 2000, max_ctx=4096, hold_after=5)
    async with TlsHarness(script) as server:
        async with server.client.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
            await anext(answer.aiter_text())
        await eventually(lambda: server.in_flight() == 0)
        assert server.models[0].cancels()


async def test_a_tls_client_that_stops_reading_is_dropped() -> None:
    async with TlsHarness(FLOOD, stall_s=0.3) as server:
        tls = {"ssl": trusting(), "server_hostname": "localhost", "limit": 1024}
        async with connected(server.port, **tls) as (reader, writer):
            body = json.dumps(chat_body(stream=True)).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            # The flood comes after this, or the connection might be dropped before it is read.
            assert (await reader.readexactly(12)) == b"HTTP/1.1 200"
            server.models[0].worker.release()
            await eventually(lambda: server.in_flight() == 0)
            assert server.models[0].cancels()


async def test_unix(tmp_path: Path) -> None:
    with listen_on(tmp_path / "luce.sock") as sock:
        async with UnixHarness(sock) as server:
            await converse(server)


async def test_a_client_that_leaves_a_unix_socket_is_seen(tmp_path: Path) -> None:
    script = FakeScript(reply=[97] * 2000, max_ctx=4096, hold_after=5)
    with listen_on(tmp_path / "luce.sock") as sock:
        async with UnixHarness(sock, script) as server:
            async with server.client.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
                await anext(answer.aiter_text())
            await eventually(lambda: server.in_flight() == 0)
            assert server.models[0].cancels()


async def test_a_unix_client_that_closes_its_sending_half_is_served(tmp_path: Path) -> None:
    path = tmp_path / "luce.sock"
    with listen_on(path) as sock:
        async with UnixHarness(sock, FakeScript(token_delay_s=0.05)) as server:
            async with connected(path) as (reader, writer):
                body = json.dumps(chat_body("hello")).encode()
                head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                writer.write_eof()
                assert b'"content":"hello"' in await reader.read()
            await server.idle()


async def test_a_unix_client_that_stops_reading_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "luce.sock"
    with listen_on(path) as sock:
        async with UnixHarness(sock, FLOOD, stall_s=0.3) as server:
            async with connected(path, limit=1024) as (_, writer):
                body = json.dumps(chat_body(stream=True)).encode()
                head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await server.running(1)
                server.models[0].worker.release()
                await eventually(lambda: server.in_flight() == 0)
                assert server.models[0].cancels()
