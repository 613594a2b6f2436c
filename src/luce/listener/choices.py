"""Several answers to one request: a generation of its own for each, with one order of events.

Each choice is admitted like any other request, one after the other: choice i begins when choice
i - 1 has given its first output. By then the prompt is computed, so that the later ones find it
in the prefix cache, and at most one of them waits in the queue, however full. All run on the model
of choice 0.
Errors up to the admission of choice 0 can still become any HTTP status; one later ends the whole
answer, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Self

from luce.errors import ApiError
from luce.listener.context import RequestContext
from luce.listener.generate import Generator
from luce.text.call import GenerationCall, RawPrompt
from luce.text.events import Failed, Finished, GenEvent, Started, TokenUsage

ChoiceEvent = tuple[int, GenEvent]
"""A choice's index and what happened to it."""


def choice_calls(call: GenerationCall) -> list[GenerationCall]:
    """A call for each choice, in order; a seed goes up by one from one to the next of a prompt."""
    seed = call.sampling.seed
    calls = []
    prompts_of_choices: list[tuple[RawPrompt, ...]] = [(prompt,) for prompt in call.raw_prompts]
    for prompts in prompts_of_choices or [()]:
        for index in range(call.n):
            sampling = call.sampling
            if seed is not None:
                sampling = replace(sampling, seed=(seed + index) % 2**64)
            calls.append(replace(call, n=1, raw_prompts=prompts, sampling=sampling))
    return calls


class Choices:
    """All generations of one request. Use as an async context manager, like a `Generation`."""

    def __init__(self, generator: Generator, call: GenerationCall, context: RequestContext) -> None:
        self._generator = generator
        self._calls = choice_calls(call)
        self._per_prompt = call.n
        self._context = context
        self._queue: asyncio.Queue[list[ChoiceEvent] | Exception] = asyncio.Queue()
        self._pending: list[ChoiceEvent] = []
        self._may_begin = [asyncio.Event() for _ in self._calls]
        self._num_open = len(self._calls)
        self._totals = {"prompt_tokens": 0, "cached_tokens": 0, "tokens": 0}
        self._model: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._may_begin[0].set()
        self._tasks = [asyncio.create_task(self._run(i)) for i in range(len(self._calls))]
        try:
            first = await self._queue.get()
            if isinstance(first, Exception):
                raise first
        except BaseException:
            await self._stop()
            raise
        self._pending = first
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def each(self, take: Callable[[list[ChoiceEvent]], None]) -> None:
        """Give all events to `take`, in order and as they come; returns after the last.

        Raises:
            SlowClient: the worker gave up on this client.
            Exception: whatever `take` raises ends this.
        """
        while self._num_open:
            take(await self._next())

    async def _next(self) -> list[ChoiceEvent]:
        events, self._pending = self._pending, []
        if not events:
            item = await self._queue.get()
            events = item if isinstance(item, list) else [(0, self._failed(item))]
        for index, event in events:
            self._note(index, event)
        return events

    async def _run(self, index: int) -> None:
        """One choice from admission to its end."""
        await self._may_begin[index].wait()
        context = self._context
        if index:
            client = context.client
            context = RequestContext(context.request_id, f"{context.key}.{index}", client=client)
        try:
            call, only = self._calls[index], self._model
            async with self._generator.generate(call, context, only) as generation:
                await generation.each(partial(self._hand_over, index))
        except Exception as error:  # raised again by whoever waits for events
            self._queue.put_nowait(error)

    def _hand_over(self, index: int, events: list[GenEvent]) -> None:
        if isinstance(events[0], Started):
            self._model = events[0].model
        self._queue.put_nowait([(index, event) for event in events])
        if not isinstance(events[0], Started):
            self._let_begin(index + 1)

    def _let_begin(self, index: int) -> None:
        if index < len(self._may_begin):
            self._may_begin[index].set()

    def _note(self, index: int, event: GenEvent) -> None:
        if index and not isinstance(event, Started):
            # Choice 0 does so itself: the request decodes until its last choice's last token.
            self._context.timings.token()
        if isinstance(event, Failed):
            self._num_open = 0
            self._context.outcome["error"] = event.error.code
        elif isinstance(event, Finished):
            self._num_open -= 1
            self._add(event.usage, is_first=index % self._per_prompt == 0)

    def _add(self, usage: TokenUsage, *, is_first: bool) -> None:
        """Count for the log; a prompt counts with its first choice, as the client sees it."""
        self._totals["tokens"] += usage.completion_tokens
        if is_first:
            self._totals["prompt_tokens"] += usage.prompt_tokens
            self._totals["cached_tokens"] += usage.cached_tokens
        self._context.outcome.update(self._totals)

    def _failed(self, error: Exception) -> Failed:
        if not isinstance(error, ApiError):
            raise error
        return Failed(error)

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
