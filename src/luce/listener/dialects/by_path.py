"""Errors that are found outside of any endpoint, in the words of the API that was called."""

from __future__ import annotations

from luce.errors import ApiError
from luce.listener.dialects import anthropic_errors, openai_errors

_ANTHROPIC = "/v1/messages"


def error_body_for(path: str, error: ApiError) -> bytes:
    """The body of an error.

    Args:
        path: of the request; OpenAI's envelope is the one for paths of no API.
        error: the error.
    """
    is_anthropic = path == _ANTHROPIC or path.startswith(_ANTHROPIC + "/")
    envelope = anthropic_errors.error_body if is_anthropic else openai_errors.error_body
    return envelope(error)
