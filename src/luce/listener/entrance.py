"""Where clients come in, and which of them may: opened before anything slow begins."""

from __future__ import annotations

import contextlib
import logging
import shlex
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from socket import AF_UNIX, socket

from luce.config.listener import ListenerConfig
from luce.listener.access import Access, read_access
from luce.listener.bind import bind, is_public, url_of
from luce.listener.cors import Cors, cors_of
from luce.listener.tls import tls_context
from luce.listener.unix_socket import listen_on

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entrance:
    """A listening socket and its rules.

    Attributes:
        sock: TCP or Unix.
        tls: None = plain HTTP.
        access: whose requests are served.
        cors: whose web pages are.
    """

    sock: socket
    tls: ssl.SSLContext | None = None
    access: Access = field(default_factory=Access)
    cors: Cors = field(default_factory=Cors)

    @property
    def url(self) -> str:
        """For people: how to reach it from this machine."""
        if self._path is not None:
            return f"unix:{self._path}"
        return url_of(self.sock, self._scheme)

    @property
    def curl(self) -> str:
        """The same as the words of a command, up to where the path begins."""
        words = "curl"
        if not self.access.is_open:
            words += " -H 'Authorization: Bearer KEY'"
        if self._path is None:
            return f"{words} {self.url}"
        return f"{words} --unix-socket {shlex.quote(str(self._path))} {self._scheme}://localhost"

    @property
    def _scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @property
    def _path(self) -> Path | None:
        return Path(self.sock.getsockname()) if self.sock.family == AF_UNIX else None


@contextlib.contextmanager
def open_entrance(config: ListenerConfig, port_option: str = "--port") -> Iterator[Entrance]:
    """Listen as the configuration says while the body runs.

    Args:
        config: where, and for whom.
        port_option: where its port was written.

    Raises:
        UsageError: a file of keys or of a certificate is not what it should be.
        BindError: the address cannot be had.
    """
    access = read_access(config)
    cors = cors_of(config, has_keys=not access.is_open)
    tls = None if config.tls_cert is None else tls_context(config.tls_cert, config.tls_key)
    listening = (
        bind(config.host, config.port, port_option) if config.uds is None else listen_on(config.uds)
    )
    with listening as sock:
        entrance = Entrance(sock, tls, access, cors)
        if access.is_open and is_public(sock):
            log.warning(
                "every machine of the network can use this server; --api-key-file asks for a key",
                extra={"url": entrance.url},
            )
        yield entrance
