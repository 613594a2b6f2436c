"""`GET /v1/models` and `GET /v1/models/NAME`."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from luce.errors import ModelNotFound
from luce.listener.dialects.base import JSON_TYPE
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


class ModelRoutes:
    """The two endpoints; answer at once whatever the workers do."""

    def __init__(self, models: ServedModels, created: int) -> None:
        self._models = models
        self._created = created

    async def index(self, _request: Request) -> Response:
        """All models in order of priority, loaded or not."""
        return _json(ModelList(data=[self._card(model) for model in self._models]))

    async def one(self, request: Request) -> Response:
        """One model.

        Raises:
            ModelNotFound: there is none of this name.
        """
        name = request.path_params["name"]
        model = self._models.get(name)
        if model is None:
            names = ", ".join(model.name for model in self._models)
            raise ModelNotFound(f"There is no model {name[:128]!r}; there are: {names}.")
        return _json(self._card(model))

    def _card(self, model: ServedModel) -> ModelCard:
        return ModelCard(
            id=model.name,
            created=self._created,
            context_length=model.context_length,
            max_context_length=model.max_context_length,
            state=model.state,
        )


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON_TYPE)
