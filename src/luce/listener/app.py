"""The Starlette app: which path leads where. No logic."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from luce.errors import ApiError, InvalidRequest, MethodNotAllowed, RouteNotFound
from luce.listener.dialects.base import JSON_TYPE
from luce.listener.dialects.openai_chat import OpenAIChat, error_body
from luce.listener.generate import Generator
from luce.listener.middleware import RequestMiddleware
from luce.listener.routes.generation import ClientRules, GenerationEndpoint
from luce.listener.routes.health import HealthRoutes
from luce.listener.routes.models import ModelRoutes
from luce.listener.served import ServedModels
from luce.routing.router import Router


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes need.

    Attributes:
        router: routing state.
        models: what is served.
        generator: runs generations.
        rules: how clients are treated.
        created: Unix time the server started, shown as the models' creation.
    """

    router: Router
    models: ServedModels
    generator: Generator
    rules: ClientRules
    created: int


def build_app(services: Services) -> Starlette:
    """The app over these services."""
    health = HealthRoutes(services.models, services.router)
    models = ModelRoutes(services.models, services.created)
    chat = GenerationEndpoint(OpenAIChat(), services.generator, services.rules)
    app = Starlette(
        routes=[
            Route("/", health.root),
            Route("/health", health.ready),
            Route("/health/live", health.live),
            Route("/v1/models", models.index),
            Route("/v1/models/{name:path}", models.one),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        middleware=[Middleware(RequestMiddleware)],
        exception_handlers={HTTPException: _http_error},
    )
    app.router.redirect_slashes = False
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """The framework's own refusals in our words."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    headers = (error.headers if isinstance(error, HTTPException) else None) or {}
    ours = _as_api_error(request, status, headers.get("Allow", ""))
    return Response(error_body(ours), ours.status, headers, JSON_TYPE)


def _as_api_error(request: Request, status: int, allowed: str) -> ApiError:
    method, path = request.method, request.url.path[:128]
    if status == 404:
        return RouteNotFound(f"There is no {path} here.")
    if status == 405:
        return MethodNotAllowed(f"{path} does not take {method[:16]}; it takes {allowed}.")
    return InvalidRequest("The request is not understood.")
