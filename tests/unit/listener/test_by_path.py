from __future__ import annotations

import json

import pytest

from luce.errors import RouteNotFound
from luce.listener.dialects.by_path import error_body_for


@pytest.mark.parametrize(
    ("path", "is_anthropic"),
    [
        ("/v1/messages", True),
        ("/v1/messages/", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages_x", False),
        ("/v1/responses", False),
        ("/x/v1/messages", False),
        ("", False),
    ],
)
def test_the_path_decides_the_envelope(path: str, is_anthropic: bool) -> None:
    body = json.loads(error_body_for(path, RouteNotFound("no")))
    assert (body.get("type") == "error") is is_anthropic
    assert body["error"]["message"] == "no"
