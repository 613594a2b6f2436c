"""Errors as Anthropic's API shows them; `code` and `param` are ours."""

from __future__ import annotations

from typing import Any

import msgspec

from luce.errors import ApiError

_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}


def error_body(error: ApiError, request_id: str | None = None) -> bytes:
    """An error in Anthropic's envelope.

    Args:
        error: the error.
        request_id: the request's, if the client should see it in the body too.
    """
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    body: dict[str, Any] = {
        "type": "error",
        "error": {
            "type": _TYPES.get(error.status, fallback),
            "message": error.message,
            "code": error.code,
            "param": error.param,
        },
    }
    if request_id is not None:
        body["request_id"] = request_id
    return msgspec.json.encode(body)
