"""`POST /models/unload`: takes a model out of memory, until a request names it again."""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope, Send

from luce.errors import ApiError, InvalidRequest, ModelUnavailable
from luce.listener.body import BodyLimits, read_json_body
from luce.listener.context import context_of
from luce.listener.dialects.openai_errors import error_body
from luce.listener.dialects.wire_errors import decode_json
from luce.listener.named_model import no_such_model
from luce.listener.respond import send_body, send_error
from luce.listener.served import ServedModels

RETRY_AFTER_S = 1.0
"""Who waited for the model may ask again: that loads it."""


class UnloadRequest(msgspec.Struct):
    """Body of `POST /models/unload`."""

    model: str


class UnloadAnswer(msgspec.Struct):
    """The model leaves as soon as it has finished what runs; its state is in the status."""

    success: bool


class UnloadEndpoint:
    """An ASGI app; answers at once, whatever the worker does."""

    def __init__(self, models: ServedModels, limits: BodyLimits) -> None:
        self._models = models
        self._limits = limits
        self._decoder = msgspec.json.Decoder(UnloadRequest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            body = await read_json_body(scope, receive, self._limits)
            self._unload(decode_json(self._decoder, body).model)
        except ApiError as error:
            context_of(scope).outcome["error"] = error.code
            await send_error(send, receive, error, error_body(error))
        else:
            await send_body(send, 200, msgspec.json.encode(UnloadAnswer(True)))

    def _unload(self, name: str) -> None:
        coordinator = self._models.coordinator
        if self._models.get(name) is None:
            raise no_such_model(self._models, name)
        if coordinator is None:
            raise InvalidRequest(
                "Models come and go only with --swap-residency or --load-on-demand, and once the "
                "server is ready."
            )
        words = f"Model {name} was unloaded while this request waited for it; try again."
        coordinator.unload(name, lambda: ModelUnavailable(words, retry_after_s=RETRY_AFTER_S))
