"""What is known of one HTTP request besides its content."""

from __future__ import annotations

import itertools
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

from luce.observability.timing import RequestTimings

_CONTEXT_KEY = "luce.context"
_ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_keys = itertools.count(1)


@dataclass(slots=True)
class RequestContext:
    """One request; written by the task that serves it.

    Attributes:
        request_id: the client's `x-request-id` if it is usable, else ours.
        key: unique in this process, whatever ids clients choose.
        timings: when things happened.
        outcome: fields of the line logged when the request ends.
        is_generation: it asks a model for output.
        is_known: it came with a key that is known, or none is asked for.
        client: whose it is, where clients take turns: by address, and by key where keys are
            asked for.
    """

    request_id: str
    key: str
    timings: RequestTimings = field(default_factory=RequestTimings)
    outcome: dict[str, Any] = field(default_factory=dict)
    is_generation: bool = False
    is_known: bool = True
    client: str = ""


def new_context(headers: list[tuple[bytes, bytes]]) -> RequestContext:
    """The context of a request with these headers."""
    key = f"{next(_keys)}-{secrets.token_hex(4)}"
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    usable = _ACCEPTED_ID.fullmatch(given)
    return RequestContext(given.decode("ascii") if usable else f"req-{key}", key)


def attach(scope: Any, context: RequestContext) -> None:
    """Make the context reachable from the scope."""
    scope["state"][_CONTEXT_KEY] = context


def context_of(scope: Any) -> RequestContext:
    """The context of this request."""
    context: RequestContext = scope["state"][_CONTEXT_KEY]
    return context
