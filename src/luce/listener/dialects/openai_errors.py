"""Errors as OpenAI's API shows them."""

from __future__ import annotations

import msgspec

from luce.errors import ApiError
from luce.listener.dialects import openai_wire as wire


def error_body(error: ApiError) -> bytes:
    """An error in OpenAI's envelope; also the one for paths that belong to no dialect."""
    detail = wire.ErrorDetail(error.message, error.type, error.param, error.code)
    return msgspec.json.encode(wire.ErrorBody(detail))
