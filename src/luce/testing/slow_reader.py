"""SlowReader: an HTTP client that reads as slowly as a test wants, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import Self

SMALL_BUFFER_BYTES = 4096
"""Receive buffer asked of the kernel, so that the server feels the slow reader early."""


class SlowReader:
    """One raw connection; use as an async context manager.

    The request is written whole; the answer is read only by `read`, `read_for` and `read_all`.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        self._sock.setblocking(False)

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().sock_connect(self._sock, (self._host, self._port))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """Write one HTTP/1.1 request."""
        fields = {
            "Host": f"{self._host}:{self._port}",
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        request = f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body
        await self.send_raw(request)

    async def send_raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def read(self, max_bytes: int) -> bytes:
        """Read once; empty when the server has closed."""
        return await asyncio.get_running_loop().sock_recv(self._sock, max_bytes)

    async def read_for(self, seconds: float, bytes_per_s: int) -> bytes:
        """Read at a rate for a while, or until the server closes."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        received = b""
        step_s = 0.05
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while data := await self.read(max(1, int(bytes_per_s * step_s))):
                    received += data
                    await asyncio.sleep(step_s)
        return received

    async def read_all(self) -> bytes:
        """Read until the server closes.

        Raises:
            ConnectionResetError: the server dropped the connection.
        """
        received = b""
        while data := await self.read(65536):
            received += data
        return received

    def close(self) -> None:
        """Close in order (FIN)."""
        self._sock.close()

    def reset(self) -> None:
        """Close with RST, as a killed client does."""
        linger_on_for_0_s = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_on_for_0_s)
        self._sock.close()
