"""Request heads: their bytes on the way to the parser, and what the parser lets pass.

The bytes are counted and never become a change of protocol. What was parsed is held to the rules
that keep a proxy in front of us and us from seeing different requests in the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from luce.errors import InvalidRequest

_END = re.compile(rb"\r?\n\r?\n")
_UPGRADE = re.compile(rb"(?<=\n)upgrade(?=[ \t]*:)", re.IGNORECASE)
_PERHAPS_UPGRADE = re.compile(
    rb"(?<=\n)u(?:p(?:g(?:r(?:a(?:d(?:e[ \t]*)?)?)?)?)?)?\Z", re.IGNORECASE
)
_IGNORED = b"x-asked"
"""As long as the name it takes the place of."""

_CONTEXT_BYTES = 3
"""What can precede the last newline of a head's end."""


_VERSIONS = ("1.0", "1.1")


def check_head(version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Check a parsed head (RFC 9112 §2.3, §3.2, §6.1).

    Args:
        version: of HTTP, e.g. `1.1`.
        headers: names in small letters.

    Raises:
        InvalidRequest: another version, not exactly one Host, or a transfer coding that is not
            undone here.
    """
    if version not in _VERSIONS:
        raise InvalidRequest(f"HTTP/{version} is not spoken here; use HTTP/1.1.")
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (version == "1.0" or value.lower() != b"chunked"):
            raise InvalidRequest("The only Transfer-Encoding is chunked, and only in HTTP/1.1.")
    if hosts > 1 or (version == "1.1" and not hosts):
        raise InvalidRequest("A request has exactly one Host header.")


class RequestHead:
    """One head, in the pieces it comes in.

    A client may offer another protocol (`Upgrade: h2c`), and a server may ignore that and answer
    in HTTP/1.1 (RFC 9110 §7.8). The parser would take what follows such a head for the other
    protocol, so the field gets another name before the parser sees it.

    Attributes:
        num_bytes: length so far; final once the head has ended.
        has_ended: the empty line was there.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self.has_ended = False
        self._before = b""
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take what came; give what the parser may see now, what follows the head included."""
        if self.has_ended:
            return data
        text = self._before + self._held + data
        end = _END.search(text)
        self.has_ended = end is not None
        size = end.end() if end is not None else len(text)
        head = _UPGRADE.sub(_IGNORED, text[:size])
        self.num_bytes += size - len(self._before) - len(self._held)
        perhaps = None if self.has_ended else _PERHAPS_UPGRADE.search(head)
        self._held = perhaps[0] if perhaps else b""
        shown = head[: len(head) - len(self._held)]
        passed = shown[len(self._before) :] + text[size:]
        self._before = shown[-_CONTEXT_BYTES:]
        return passed
