"""`GET /health`: whether a request would be served; `/health/live`: whether anybody is home."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from luce import __version__
from luce.listener.context import context_of
from luce.listener.dialects.base import JSON_TYPE
from luce.listener.served import ServedModel, ServedModels
from luce.routing.router import Router

_RETRY_AFTER_S = "1"


class LoadState(msgspec.Struct):
    """How far a load is."""

    stage: str
    done_bytes: int
    total_bytes: int


class ModelHealth(msgspec.Struct, omit_defaults=True):
    """One model's state; see `/v1/models`."""

    id: str
    state: str
    progress: LoadState | None = None


class Health(msgspec.Struct, omit_defaults=True):
    """Whether requests are served.

    Attributes:
        status: "ok", "loading", "restarting", "unavailable" or "stopping".
        models: left out for callers without the key, if one is asked for.
    """

    status: str
    models: list[ModelHealth] | None = None


class Liveness(msgspec.Struct, omit_defaults=True):
    """That somebody is there.

    Attributes:
        name, version: of the server; left out as `models` of `/health` is.
    """

    status: str
    name: str | None = None
    version: str | None = None


class HealthRoutes:
    """Health endpoints; they look at state only, so they answer at once under any load."""

    def __init__(self, models: ServedModels, router: Router) -> None:
        self._models = models
        self._router = router

    async def root(self, request: Request) -> Response:
        """Who this is; also what `HEAD /` probes want."""
        who = ("luce", __version__) if _may_know(request) else ()
        return _answer(200, Liveness("ok", *who))

    async def ready(self, request: Request) -> Response:
        """200 if a request would be served or queued; `?live` asks for liveness only."""
        if "live" in request.query_params:
            return await self.live(request)
        status = self._status()
        models = [_describe(model) for model in self._models] if _may_know(request) else None
        return _answer(200 if status == "ok" else 503, Health(status, models))

    async def live(self, _request: Request) -> Response:
        """200 while the server runs, loaded or not."""
        return _answer(200, Liveness("alive"))

    def _status(self) -> str:
        states = {model.state for model in self._models}
        if self._router.is_stopping:
            return "stopping"
        if self._router.policy.needs_all and "loading" in states:
            return "loading"
        # A model that is not resident comes in when a request names it.
        if not states.isdisjoint(("ready", "closing", "entering", "evicted")):
            return "ok"
        return next((s for s in ("restarting", "loading") if s in states), "unavailable")


def _may_know(request: Request) -> bool:
    """Probes come without a key; they learn how the server is and not what it serves."""
    return context_of(request.scope).is_known


def _describe(model: ServedModel) -> ModelHealth:
    progress = model.handle.progress
    if progress is None:
        return ModelHealth(model.name, model.state)
    load = LoadState(progress.stage, progress.done_bytes, progress.total_bytes)
    return ModelHealth(model.name, model.state, load)


def _answer(status: int, value: Health | Liveness) -> Response:
    headers = {} if status == 200 else {"Retry-After": _RETRY_AFTER_S}
    return Response(msgspec.json.encode(value), status, headers, JSON_TYPE)
