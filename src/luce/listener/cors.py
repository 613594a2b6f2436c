"""Which web pages may use the server from a browser.

Browsers let a page read answers of another origin only if they say so, and ask first (a
preflight) before most requests. They never send a key by themselves, so with keys any page that
has one may be let in. Without keys a page that a user of this machine merely visits could use
the models, so pages of other machines have to be named.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from luce.config.forms import ANY_ORIGIN
from luce.config.listener import ListenerConfig
from luce.errors import Forbidden
from luce.listener.respond import Headers
from luce.units import quoted

MAX_AGE_S = 600
"""How long a browser may remember a preflight's answer."""

_ORIGIN = b"origin"
_METHODS = b"GET, POST, DELETE, OPTIONS"
_EXPOSED = b"x-request-id, request-id, retry-after"
_DEFAULT_HEADERS = b"authorization, content-type, x-api-key, x-request-id"
_ASKED_HEADERS = re.compile(rb"[A-Za-z0-9_, -]{1,2048}")
_LOOPBACK = re.compile(r"(localhost|.+\.localhost|127(\.[0-9]{1,3}){3}|::1)")
_SAME_SITE = (b"same-origin", b"none")


class Cors:
    """The rule for one server.

    Args:
        origins: pages of these may use it; `*` means all, none of them those of this machine.
        enabled: False: no page of another origin may.
    """

    def __init__(self, origins: tuple[str, ...] = (), *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._allows_any = enabled and ANY_ORIGIN in origins
        self._origins = frozenset(origins)

    def headers(self, asked: Headers) -> list[tuple[bytes, bytes]]:
        """What to add to the answer of a request with the headers `asked`."""
        if not self._enabled:
            return []
        if self._allows_any:
            allowed = [(b"access-control-allow-origin", b"*")]
        else:
            allowed = [(b"vary", b"Origin")]
            origin = _first(asked, _ORIGIN)
            if not origin or not self._allows(origin):
                return allowed
            allowed.append((b"access-control-allow-origin", origin))
        return [*allowed, (b"access-control-expose-headers", _EXPOSED)]

    def preflight(self, asked: Headers) -> list[tuple[bytes, bytes]]:
        """What the answer of a preflight has besides `headers`."""
        if b"access-control-allow-origin" not in dict(self.headers(asked)):
            return []
        wanted = _first(asked, b"access-control-request-headers")
        # `*` would not stand for Authorization, so what is asked for is named.
        allowed = wanted if _ASKED_HEADERS.fullmatch(wanted) else _DEFAULT_HEADERS
        return [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", allowed),
            (b"access-control-max-age", b"%d" % MAX_AGE_S),
        ]

    def check(self, asked: Headers) -> None:
        """Refuse what a page of another origin sends without asking first.

        Some requests need no preflight. Their answer stays hidden from the page, but the work
        would be done.

        Raises:
            Forbidden: the page's origin is not allowed.
        """
        origin = _first(asked, _ORIGIN)
        if not origin or self._allows(origin) or _is_own(origin, asked):
            return
        shown = quoted(origin.decode("latin-1"), 128)
        raise Forbidden(
            f"Pages of {shown} may not use this server; start it with --cors-origin to allow it."
        )

    def _allows(self, origin: bytes) -> bool:
        if not self._enabled:
            return False
        text = origin.decode("latin-1")
        if self._origins:
            return self._allows_any or text in self._origins
        return _is_loopback(text)


def cors_of(config: ListenerConfig, *, has_keys: bool) -> Cors:
    """The rule of a configuration; see the module."""
    origins = config.cors_origin or ((ANY_ORIGIN,) if has_keys else ())
    return Cors(origins, enabled=config.cors)


def _is_loopback(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        host = parts.hostname or ""
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and _LOOPBACK.fullmatch(host) is not None


def _is_address(origin: str) -> bool:
    try:
        ipaddress.ip_address(urlsplit(origin).hostname or "")
    except ValueError:
        return False
    return True


def _is_own(origin: bytes, asked: Headers) -> bool:
    """The page came from this server, as far as it or the browser can tell.

    Behind a proxy the names differ; the browser knows the one it asked. Browsers say so of safe
    pages (HTTPS, loopback) only. For others an address counts, but no name: whoever owns a name
    may let it point to this machine once his page is open (DNS rebinding).
    """
    if _first(asked, b"sec-fetch-site") in _SAME_SITE:
        return True
    host = _first(asked, b"host")
    if not host or origin.partition(b"://")[2] != host:
        return False
    text = origin.decode("latin-1")
    return _is_loopback(text) or _is_address(text)


def _first(headers: Headers, wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")
