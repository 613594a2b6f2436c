"""uvicorn inside our event loop: our protocol, our signals, connections that can be cut."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from luce.listener.connection import HttpProtocol

KEEP_ALIVE_S = 75
"""How long an idle connection stays open: longer than clients keep theirs, so that they close
first and never send into a connection we are closing."""


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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the one who runs us."""
        yield

    def stop_accepting(self) -> None:
        """Close the listening socket; `serve` returns when the last connection is closed."""
        self.should_exit = True

    def cut_connections(self) -> None:
        """Close every connection at once, whatever it is about."""
        self.should_exit = True
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()
