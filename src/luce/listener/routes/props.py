"""`GET /props`: what was resolved and what is supported, the primary's at the top."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from luce.listener.dialects.base import JSON_TYPE
from luce.listener.model_props import model_props
from luce.listener.residency_status import placement_fields
from luce.listener.routes.status import model_entries
from luce.listener.served import ServedModels
from luce.observability.memory import peak_resident_bytes, resident_bytes
from luce.routing.router import Router


class PropsRoute:
    """The endpoint; it reads what the listener knows and asks no worker."""

    def __init__(self, models: ServedModels, router: Router) -> None:
        self._models = models
        self._router = router

    async def show(self, request: Request) -> Response:
        """The primary's properties and this process's; with several models also the list."""
        entries = model_entries(self._models, self._router)
        body = model_props(self._models[entries[0].id])
        body["api"] = {"endpoints": _endpoints(request)}
        body["memory"]["process"] = {
            "rss_bytes": resident_bytes(),
            "peak_rss_bytes": peak_resident_bytes(),
        }
        if len(entries) > 1:
            body["routing"] = self._router.policy.name
            body["waiting"] = self._router.num_waiting
            body["queue_limit"] = self._router.queue_limit
            body["models"] = entries
            body |= placement_fields(self._models.coordinator)
        return Response(msgspec.json.encode(body), media_type=JSON_TYPE)


def _endpoints(request: Request) -> list[str]:
    return [route.path for route in request.app.routes if isinstance(route, Route)]
