from __future__ import annotations

import json

import pytest

from luce import errors
from luce.listener.dialects.anthropic_errors import error_body
from luce.observability.log import request_id_var


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.InvalidRequest("x"), "invalid_request_error"),
        (errors.ModelNotFound("x"), "not_found_error"),
        (errors.BodyTooLarge("x"), "request_too_large"),
        (errors.UnsupportedMediaType("x"), "invalid_request_error"),
        (errors.QueueFull("x"), "overloaded_error"),
        (errors.InternalError("x"), "api_error"),
    ],
)
def test_kinds(error: errors.ApiError, kind: str) -> None:
    body = json.loads(error_body(error))
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert (body["error"]["message"], body["error"]["code"]) == ("x", error.code)
    assert "request_id" not in body


def test_the_field_and_the_request_are_named() -> None:
    token = request_id_var.set("req-1")
    body = json.loads(error_body(errors.InvalidRequest("x", param="system[0]")))
    request_id_var.reset(token)
    assert (body["error"]["param"], body["request_id"]) == ("system[0]", "req-1")
