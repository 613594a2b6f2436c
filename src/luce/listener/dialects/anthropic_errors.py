"""Errors as Anthropic's API shows them; `code` and `param` are ours."""

from __future__ import annotations

from typing import Any

import msgspec

from luce.errors import ApiError
from luce.observability.log import request_id_var

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError) -> bytes:
    """An error in Anthropic's envelope, with the id of the request that is being served."""
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
    request_id = request_id_var.get()
    if request_id:
        body["request_id"] = request_id
    return msgspec.json.encode(body)
