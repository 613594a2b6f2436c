"""`GET /openapi.json`, and `GET /docs`, which shows it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from luce.listener.dialects.base import JSON_TYPE
from luce.listener.openapi.document import openapi_document
from luce.listener.openapi.operations import HTML
from luce.listener.openapi.page import page_of

_NOTHING_FROM_ELSEWHERE = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


class OpenApiRoutes:
    """The two endpoints; each answer is made when it is first asked for."""

    def __init__(self, *, has_keys: bool) -> None:
        self._has_keys = has_keys

    async def document(self, _request: Request) -> Response:
        """The document."""
        return Response(self._json, media_type=JSON_TYPE)

    async def page(self, _request: Request) -> Response:
        """The page."""
        headers = {"Content-Security-Policy": _NOTHING_FROM_ELSEWHERE, "Content-Type": HTML}
        return Response(self._html, headers=headers)

    @cached_property
    def _document(self) -> dict[str, Any]:
        return openapi_document(has_keys=self._has_keys)

    @cached_property
    def _json(self) -> bytes:
        return msgspec.json.encode(self._document)

    @cached_property
    def _html(self) -> str:
        return page_of(self._document)
