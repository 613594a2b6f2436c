"""The bytes of request heads on their way to the parser: counted, and never a protocol change."""

from __future__ import annotations

import re

_END = re.compile(rb"\r?\n\r?\n")
_UPGRADE = re.compile(rb"(?<=\n)upgrade(?=[ \t]*:)", re.IGNORECASE)
_PERHAPS_UPGRADE = re.compile(
    rb"(?<=\n)u(?:p(?:g(?:r(?:a(?:d(?:e[ \t]*)?)?)?)?)?)?\Z", re.IGNORECASE
)
_IGNORED = b"x-asked"
"""As long as the name it takes the place of."""

_CONTEXT_BYTES = 3
"""What can precede the last newline of a head's end."""


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
