"""`GET` and `DELETE /v1/responses/ID`: responses that are kept."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from luce.errors import UnsupportedFeature
from luce.listener.dialects.base import JSON_TYPE
from luce.listener.responses_store import ResponseStore, not_kept


class DeletedResponse(msgspec.Struct, kw_only=True):
    """Says that a response is forgotten."""

    id: str
    object: str = "response"
    deleted: bool = True


class ResponseRoutes:
    """The two endpoints; answer at once whatever the workers do."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def one(self, request: Request) -> Response:
        """Show or forget a response.

        Raises:
            ResponseNotFound: it is not kept.
            UnsupportedFeature: the client wants its stream again.
        """
        return self._delete(request) if request.method == "DELETE" else self._show(request)

    def _show(self, request: Request) -> Response:
        if request.query_params.get("stream", "false").lower() not in ("false", "0"):
            raise UnsupportedFeature("A stream cannot be read again here.", param="stream")
        response_id = request.path_params["response_id"]
        stored = self._store.get(response_id)
        if stored is None:
            raise not_kept(response_id)
        return Response(stored.body, media_type=JSON_TYPE)

    def _delete(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        if not self._store.delete(response_id):
            raise not_kept(response_id)
        body = msgspec.json.encode(DeletedResponse(id=response_id))
        return Response(body, media_type=JSON_TYPE)
