"""`GET /health`: whether a request would be served; `/health/live`: whether anybody is home."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from luce import __version__
from luce.listener.dialects.base import JSON_TYPE
from luce.listener.served import ServedModel, ServedModels
from luce.routing.router import Router

_RETRY_AFTER_S = "1"


class HealthRoutes:
    """Health endpoints; they look at state only, so they answer at once under any load."""

    def __init__(self, models: ServedModels, router: Router) -> None:
        self._models = models
        self._router = router

    async def root(self, _request: Request) -> Response:
        """Who this is; also what `HEAD /` probes want."""
        return _answer(200, {"status": "ok", "name": "luce", "version": __version__})

    async def ready(self, request: Request) -> Response:
        """200 if a model is up; `?live` asks for liveness only."""
        if "live" in request.query_params:
            return await self.live(request)
        status = self._status()
        models = [_describe(model) for model in self._models]
        return _answer(200 if status == "ok" else 503, {"status": status, "models": models})

    async def live(self, _request: Request) -> Response:
        """200 while the server runs, loaded or not."""
        return _answer(200, {"status": "alive"})

    def _status(self) -> str:
        states = {model.state for model in self._models}
        if self._router.is_stopping:
            return "stopping"
        if "ready" in states:
            return "ok"
        return next((s for s in ("restarting", "loading") if s in states), "unavailable")


def _describe(model: ServedModel) -> dict[str, Any]:
    described: dict[str, Any] = {"id": model.name, "state": model.state}
    progress = model.handle.progress
    if progress is not None:
        described["progress"] = {
            "stage": progress.stage,
            "done_bytes": progress.done_bytes,
            "total_bytes": progress.total_bytes,
        }
    return described


def _answer(status: int, value: Any) -> Response:
    headers = {} if status == 200 else {"Retry-After": _RETRY_AFTER_S}
    return Response(msgspec.json.encode(value), status, headers, JSON_TYPE)
