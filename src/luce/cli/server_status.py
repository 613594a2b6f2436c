"""Fetches the status of a running server, for `luce plan --explain`."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import msgspec

from luce.errors import UsageError
from luce.placement.explain import ServerStatus

_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 26
_PATH = "/status/json"


class NoStatus(Exception):
    """There is no server there, or it says nothing that helps; the text says why."""


def fetch_status(url: str, api_key: str | None) -> ServerStatus:
    """Ask a server.

    Raises:
        UsageError: the address is none.
        NoStatus: it does not answer, or decides nothing by bytes.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--explain: {url!r} is no address of a server; write http://HOST:PORT")
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    place = f"{parts.scheme}://{parts.netloc}{_PATH}"
    request = urllib.request.Request(place, headers=headers)  # noqa: S310 - its scheme was checked
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as above
            body = answer.read(_MAX_BYTES)
        status = msgspec.json.decode(body, type=ServerStatus)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoStatus(f"{place}: no status of a server: {_reason(error)}") from error
    if not status.devices:
        raise NoStatus(
            f"{place}: this server decides nothing by bytes; that takes --load-on-demand"
        )
    return status


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        return str(error.reason)
    return str(error)
