"""`GET /v1/models` and `GET /v1/models/NAME`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from luce.listener.dialects.base import JSON_TYPE
from luce.listener.named_model import no_such_model
from luce.listener.served import ServedModel, ServedModels


class ModelCard(msgspec.Struct):
    """One model as `/v1/models` shows it.

    Attributes:
        context_length: longest sequence served, null while the model loads.
        max_context_length: the context it was trained for, null while the model loads.
        state: "loading", "ready", "restarting" or "unavailable"; where models come and go also
            "closing", "evicted", "entering" or "failed".
    """

    id: str
    created: int
    context_length: int | None
    max_context_length: int | None
    state: str
    object: str = "model"
    owned_by: str = "luce"


class ModelList(msgspec.Struct, kw_only=True):
    """All models in order of priority."""

    object: str = "list"
    data: list[ModelCard]


class EffortLevel(msgspec.Struct):
    """One of the efforts a client may offer."""

    effort: str
    description: str


_EFFORTS = (
    EffortLevel("none", "No thinking"),
    EffortLevel("low", "A little thinking"),
    EffortLevel("medium", "Some thinking"),
    EffortLevel("high", "Much thinking"),
    EffortLevel("xhigh", "Most thinking"),
)


class CodexModel(msgspec.Struct, kw_only=True):
    """One model in the list that Codex asks for.

    Attributes:
        slug: what a request writes as its model.
        priority: 1 is shown first.
        context_window: longest sequence served, null while the model loads.
    """

    slug: str
    display_name: str
    description: str = "Served by luce"
    default_reasoning_level: str = "low"
    supported_reasoning_levels: tuple[EffortLevel, ...] = _EFFORTS
    shell_type: str = "shell_command"
    visibility: str = "list"
    supported_in_api: bool = True
    priority: int
    context_window: int | None
    supports_reasoning_summaries: bool = False
    supports_parallel_tool_calls: bool = False


class CodexModelList(msgspec.Struct):
    """All models in order of priority, for Codex."""

    models: list[CodexModel]


class ModelRoutes:
    """The two endpoints; answer at once whatever the workers do."""

    def __init__(self, models: ServedModels, created: int) -> None:
        self._models = models
        self._created = created

    async def index(self, request: Request) -> Response:
        """All models in order of priority, loaded or not.

        Codex says its version in the query, and reads a list of another form.
        """
        if "client_version" in request.query_params:
            return _json(CodexModelList(_for_codex(self._models)))
        return _json(ModelList(data=[self._card(model) for model in self._models]))

    async def one(self, request: Request) -> Response:
        """One model.

        Raises:
            ModelNotFound: there is none of this name.
        """
        name = request.path_params["name"]
        model = self._models.get(name)
        if model is None:
            raise no_such_model(self._models, name)
        return _json(self._card(model))

    def _card(self, model: ServedModel) -> ModelCard:
        return ModelCard(
            id=model.name,
            created=self._created,
            context_length=model.context_length,
            max_context_length=model.max_context_length,
            state=model.state,
        )


def _for_codex(models: Iterable[ServedModel]) -> list[CodexModel]:
    return [
        CodexModel(
            slug=model.name,
            display_name=model.name,
            priority=place,
            context_window=model.context_length,
        )
        for place, model in enumerate(models, start=1)
    ]


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON_TYPE)
