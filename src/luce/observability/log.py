"""One logging configuration: key=value lines on stderr, with the request's id in each.

Messages are constant strings; what varies goes into `extra` and becomes fields. Prompts and
completions never appear.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

request_id_var: ContextVar[str] = ContextVar("luce_request_id", default="")
"""Id of the request this task works for; empty outside of one."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_NEEDS_QUOTES = frozenset(' "=\\')


class KeyValueFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO luce.listener.server msg="ready" key=value`, one line."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, tz=UTC)
        fields: dict[str, Any] = {"msg": record.getMessage()}
        request_id = request_id_var.get()
        if request_id:
            fields["request_id"] = request_id
        fields.update((key, value) for key, value in vars(record).items() if key not in _STANDARD)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        pairs = " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())
        stamp = when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"
        return f"{stamp} {record.levelname} {record.name} {pairs}"


def configure_logging(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send everything of `level` and above to `stream` (stderr); replaces what was set up."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # uvicorn's own lines repeat ours; what it has to complain about still comes through.
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))


def _quoted(value: Any) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if text and text.isprintable() and not _NEEDS_QUOTES & set(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else _escape(c) for c in escaped) + '"'


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
