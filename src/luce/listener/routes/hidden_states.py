"""`POST /v1/hidden_states`: the residual stream of a prompt, read by one model."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial

from starlette.types import Receive, Scope, Send

from luce.errors import ApiError, InternalError
from luce.listener.admission import Admitted
from luce.listener.body import read_json_body
from luce.listener.connection import CancelWhenGone, client_of
from luce.listener.context import RequestContext, context_of
from luce.listener.dialects import openai_errors
from luce.listener.dialects.hidden_states import (
    HiddenStatesDialect,
    Reading,
    ReadPrompt,
    check_range,
)
from luce.listener.generate import Generator
from luce.listener.named_model import named_model
from luce.listener.respond import send_body, send_error
from luce.listener.routes.generation import ClientRules
from luce.listener.served import ServedModels
from luce.protocol.sampling import HiddenStates

_NS_PER_MS = 1e6
_TOKEN_BYTES = 4


class HiddenStatesEndpoint:
    """An ASGI app.

    Args:
        models: who can be asked.
        generator: takes the request to its model, as any other.
        executor: where answers are encoded.
        rules: how clients are treated.
    """

    def __init__(
        self, models: ServedModels, generator: Generator, executor: Executor, rules: ClientRules
    ) -> None:
        self._models = models
        self._generator = generator
        self._executor = executor
        self._rules = rules
        self._dialect = HiddenStatesDialect()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        context = context_of(scope)
        context.is_generation = True
        try:
            reading = self._dialect.decode(await read_json_body(scope, receive, self._rules.body))
            async with CancelWhenGone(client_of(scope)):
                answer = await self._read(reading, context)
        except ApiError as error:
            context.outcome["error"] = error.code
            await send_error(send, receive, error, openai_errors.error_body(error))
        else:
            await send_body(send, 200, answer)

    async def _read(self, reading: Reading, context: RequestContext) -> bytes:
        model = named_model(self._models, reading.model, is_strict=True)
        if model.handle.ready is not None:
            # Before it is brought in; a model that was never here says so itself.
            check_range(reading.layers, model.handle.ready.num_layers, model.name)
        async with self._generator.generate(reading.call, context, model.name) as generation:
            admitted, states = await generation.read_hidden()
        read = await _described(admitted, states)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, partial(self._dialect.encode, reading, read)
        )


async def _described(admitted: Admitted, states: HiddenStates) -> ReadPrompt:
    model = admitted.model
    ready, text = model.handle.ready, model.text
    if ready is None or text is None:
        raise InternalError(f"Model {model.name} has been lost.")
    retired = await admitted.stream.retired
    last = int.from_bytes(admitted.prompt.prompt_bytes[-_TOKEN_BYTES:], "little", signed=True)
    return ReadPrompt(
        model=model.name,
        num_layers=ready.num_layers,
        hidden_size=ready.hidden_size,
        num_tokens=admitted.prompt.num_tokens,
        last_token=text.tokenizer.token_bytes(last),
        prefill_ms=(retired.timings.retired_ns - retired.timings.admitted_ns) / _NS_PER_MS,
        states=states,
    )
