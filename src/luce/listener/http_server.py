"""uvicorn inside our event loop: our protocol, our signals, connections that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from luce.listener.connection import HttpProtocol

KEEP_ALIVE_S = 75
"""How long an idle connection stays open: longer than clients keep theirs, so that they close
first and never send into a connection we are closing."""

_TICK_S = 0.1
"""uvicorn counts time in these."""
_END_POLL_S = 0.005
_CUT_PATIENCE_S = 0.1
"""How long the requests of connections that were cut may take to notice."""


class HttpServer(uvicorn.Server):
    """Serves an app on a listening socket until `stop_accepting`, then until all is answered."""

    def __init__(self, app: ASGIApp, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                ssl_context_factory=None if tls is None else lambda _config, _default: tls,
            )
        )
        self._is_told = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the one who runs us."""
        yield

    async def main_loop(self) -> None:
        """Tick until told to stop, and notice that at once."""
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._is_told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End as uvicorn does, without its fixed pauses."""
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        patience_s = _CUT_PATIENCE_S
        while (self.server_state.connections or self.server_state.tasks) and patience_s > 0:
            patience_s -= _END_POLL_S if self.force_exit else 0
            await asyncio.sleep(_END_POLL_S)
        for server in self.servers:
            await server.wait_closed()

    def stop_accepting(self) -> None:
        """Close the listening socket; `serve` returns when the last connection is closed."""
        self.should_exit = True
        self._is_told.set()

    def cut_connections(self) -> None:
        """Close every connection at once, whatever it is about."""
        self.stop_accepting()
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()
