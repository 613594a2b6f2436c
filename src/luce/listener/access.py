"""Who may call: API keys, where they come from and how a request's is compared."""

from __future__ import annotations

import hmac
import logging
import stat
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from luce.config.forms import check_api_key
from luce.config.listener import ListenerConfig
from luce.config.option import BadValue
from luce.errors import Unauthorized, UsageError
from luce.listener.respond import Headers
from luce.option_file import read_option_file, reason_of

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/", "/health", "/health/live"})
"""What needs no key, spelled exactly so: whether the server is there and well."""

_BEARER = b"bearer "
_KEY_HEADER = b"x-api-key"


class Access:
    """The keys; without any, everybody may call.

    Only digests are kept, so a key cannot be shown by mistake, and all compare in equal time.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple({sha256(key.encode("ascii")).digest() for key in keys})

    @property
    def is_open(self) -> bool:
        """No key is asked for."""
        return not self._digests

    def admits(self, headers: Headers) -> bool:
        """Whether one of the keys is in these headers, or none is asked for."""
        if self.is_open:
            return True
        is_known = False
        for key in _keys_in(headers):
            is_known |= self._is_known(key)
        return is_known

    def name_of(self, headers: Headers) -> str:
        """Tells who came with which key, without the key; empty where none is asked for."""
        known = (sha256(key).hexdigest() for key in _keys_in(headers) if self._is_known(key))
        return next(known, "")

    def check(self, path: str, headers: Headers) -> None:
        """Let a request pass.

        Raises:
            Unauthorized: it needs a key that is known.
        """
        if path not in OPEN_PATHS and not self.admits(headers):
            has_key = any(True for _ in _keys_in(headers))
            problem = "This API key is not known here" if has_key else "An API key is needed"
            raise Unauthorized(
                f"{problem}; send one as Authorization: Bearer KEY or as x-api-key: KEY."
            )

    def _is_known(self, key: bytes) -> bool:
        digest = sha256(key).digest()
        is_known = False
        for known in self._digests:  # All of them, always: the time says nothing.
            is_known |= hmac.compare_digest(digest, known)
        return is_known


def read_access(config: ListenerConfig) -> Access:
    """The keys of the configuration and of its file.

    Raises:
        UsageError: the file cannot be read, or there is no key in it.
    """
    keys = list(config.api_key)
    if config.api_key_file is not None:
        keys += read_key_file(config.api_key_file)
    return Access(keys)


def read_key_file(path: Path) -> list[str]:
    """The keys of a file; messages name lines, never what is in them.

    Raises:
        UsageError: it cannot be read, has no key, or a line that is none.
    """
    try:
        mode = path.stat().st_mode
        content = read_option_file(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--api-key-file: cannot read {path}: {reason_of(error)}") from error
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        log.warning("every user of this machine can read the API keys", extra={"file": str(path)})
    keys = [_key_in(path, number, line) for number, line in enumerate(content.splitlines(), 1)]
    found = [key for key in keys if key]
    if not found:
        raise UsageError(f"--api-key-file: there is no key in {path}; write one a line")
    return found


def _key_in(path: Path, number: int, line: bytes) -> str:
    """The key of a line; empty if it has none."""
    key = line.strip().decode("latin-1")
    if not key or key.startswith("#"):
        return ""
    try:
        check_api_key(key)
    except BadValue as problem:
        raise UsageError(f"--api-key-file: line {number} of {path}: {problem}") from problem
    return key


def _keys_in(headers: Headers) -> Iterable[bytes]:
    for name, value in headers:
        if name == _KEY_HEADER:
            yield value.strip()
        elif name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            yield value[len(_BEARER) :].strip()
