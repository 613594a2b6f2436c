"""The Starlette app: which path leads where. No logic."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from luce.errors import ApiError, InvalidRequest, MethodNotAllowed, RouteNotFound
from luce.listener.access import Access
from luce.listener.cors import Cors
from luce.listener.dialects.anthropic_messages import AnthropicMessages
from luce.listener.dialects.base import JSON_TYPE
from luce.listener.dialects.by_path import error_body_for
from luce.listener.dialects.openai_chat import OpenAIChat
from luce.listener.dialects.openai_completions import OpenAICompletions
from luce.listener.dialects.openai_responses import OpenAIResponses
from luce.listener.generate import Generator
from luce.listener.middleware import RequestMiddleware
from luce.listener.responses_store import ResponseStore
from luce.listener.routes.generation import ChoicesEndpoint, ClientRules, GenerationEndpoint
from luce.listener.routes.health import HealthRoutes
from luce.listener.routes.hidden_states import HiddenStatesEndpoint
from luce.listener.routes.metrics import MetricsRoute
from luce.listener.routes.models import ModelRoutes
from luce.listener.routes.openapi import OpenApiRoutes
from luce.listener.routes.props import PropsRoute
from luce.listener.routes.responses import ResponseRoutes
from luce.listener.routes.status import StatusRoute
from luce.listener.routes.tokens import CountTokens, TokenEndpoint, Tokenize
from luce.listener.routes.unload import UnloadEndpoint
from luce.listener.served import ServedModels
from luce.listener.telemetry import Telemetry
from luce.routing.router import Router
from luce.units import cut


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes need.

    Attributes:
        router: routing state.
        models: what is served.
        generator: runs generations.
        rules: how clients are treated.
        executor: where text is rendered and tokenised.
        created: Unix time the server started, shown as the models' creation.
        access: whose requests are served.
        cors: whose web pages are.
    """

    router: Router
    models: ServedModels
    generator: Generator
    rules: ClientRules
    executor: Executor
    created: int
    access: Access = field(default_factory=Access)
    cors: Cors = field(default_factory=Cors)


def build_app(services: Services) -> Starlette:
    """The app over these services."""
    telemetry = Telemetry(services.models, services.router)
    app = Starlette(
        routes=[*_looking(services, telemetry), *_asking(services)],
        middleware=[Middleware(RequestMiddleware, telemetry, services.access, services.cors)],
        exception_handlers={HTTPException: _http_error},
    )
    app.router.redirect_slashes = False
    return app


def _looking(services: Services, telemetry: Telemetry) -> list[Route]:
    """Endpoints that show what is; they answer at once."""
    router, served = services.router, services.models
    health = HealthRoutes(served, router)
    models = ModelRoutes(served, services.created)
    openapi = OpenApiRoutes(has_keys=not services.access.is_open)
    status = StatusRoute(served, router, services.generator, telemetry)
    return [
        Route("/", health.root),
        Route("/health", health.ready),
        Route("/health/live", health.live),
        Route("/v1/models", models.index),
        Route("/v1/models/{name:path}", models.one),
        Route("/props", PropsRoute(served, router).show),
        Route("/status/json", status.show),
        Route("/metrics", MetricsRoute(telemetry).show),
        Route("/openapi.json", openapi.document),
        Route("/docs", openapi.page),
    ]


def _asking(services: Services) -> list[Route]:
    """Endpoints that take a body."""
    rules = services.rules
    store = ResponseStore()
    kept = ResponseRoutes(store)

    def tokens(task: CountTokens | Tokenize) -> TokenEndpoint:
        return TokenEndpoint(task, services.models, services.executor, rules.body)

    return [
        Route(
            "/v1/chat/completions",
            ChoicesEndpoint(OpenAIChat(), services.generator, rules),
            methods=["POST"],
        ),
        Route(
            "/v1/completions",
            ChoicesEndpoint(OpenAICompletions(), services.generator, rules),
            methods=["POST"],
        ),
        Route(
            "/v1/messages",
            GenerationEndpoint(AnthropicMessages(), services.generator, rules),
            methods=["POST"],
        ),
        Route(
            "/v1/responses",
            GenerationEndpoint(OpenAIResponses(store), services.generator, rules),
            methods=["POST"],
        ),
        Route("/v1/responses/{response_id}", kept.one, methods=["GET", "DELETE"]),
        Route("/v1/messages/count_tokens", tokens(CountTokens()), methods=["POST"]),
        Route("/tokenize", tokens(Tokenize()), methods=["POST"]),
        Route("/models/unload", UnloadEndpoint(services.models, rules.body), methods=["POST"]),
        Route(
            "/v1/hidden_states",
            HiddenStatesEndpoint(services.models, services.generator, services.executor, rules),
            methods=["POST"],
        ),
    ]


async def _http_error(request: Request, error: Exception) -> Response:
    """The framework's own refusals in our words."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    headers = (error.headers if isinstance(error, HTTPException) else None) or {}
    ours = _as_api_error(request, status, headers.get("Allow", ""))
    body = error_body_for(request.url.path, ours)
    return Response(body, ours.status, headers, JSON_TYPE)


def _as_api_error(request: Request, status: int, allowed: str) -> ApiError:
    method, path = request.method, cut(request.url.path, 128)
    if status == 404:
        meant = _meant(path, {each.path for each in request.app.routes if isinstance(each, Route)})
        hint = f"; there is {meant}: look at the client's base URL" if meant else ""
        return RouteNotFound(f"There is no {path} here{hint}.")
    if status == 405:
        return MethodNotAllowed(f"{path} does not take {cut(method, 16)}; it takes {allowed}.")
    return InvalidRequest("The request is not understood.")


def _meant(path: str, known: Collection[str]) -> str | None:
    """The route of a client whose base URL has `/v1` too often, or not at all, or slashes."""
    steps = [step for step in path.split("/") if step]
    while steps[:1] == ["v1"]:
        del steps[0]
    rest = "/".join(steps)
    meant = (each for each in (f"/v1/{rest}", f"/{rest}") if rest and each in known)
    return next(meant, None)
