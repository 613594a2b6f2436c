"""Finding the model that takes a request: check, reserve, submit, or go on to the next.

Everything here happens before the first byte of an answer, so any of it may be repeated with
another model or end in an HTTP status. The worker decides whether it has room; this code
never guesses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from luce.errors import (
    ApiError,
    ContextLengthExceeded,
    InternalError,
    LuceError,
    ModelLoading,
    ModelUnavailable,
    WorkerLost,
)
from luce.listener.context import RequestContext
from luce.listener.grammar_pool import GrammarPool
from luce.listener.ports import Prompt
from luce.listener.sampling import check_fits, sampling_params
from luce.listener.served import ServedModel, ServedModels
from luce.observability.timing import RequestTimings
from luce.protocol.messages import Retired, Usage, WorkerTimings
from luce.protocol.sampling import SamplingParams
from luce.routing.policy import RouteRequest
from luce.routing.reservation import Reservation
from luce.routing.router import Router
from luce.routing.ticket import Ticket
from luce.text.call import GenerationCall
from luce.workers.handle import WorkerHandle, WorkerRefusal
from luce.workers.stream import WorkerStream


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request made ready for one model; kept, so a retry or a wait never renders again."""

    prompt: Prompt
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Admitted:
    """A model has taken the request; it stays there until it ends.

    Attributes:
        reservation: None: it ended at once, without one.
    """

    model: ServedModel
    prompt: Prompt
    sampling: SamplingParams
    stream: WorkerStream
    reservation: Reservation | None


class Admissions:
    """Admits requests; one per server."""

    def __init__(
        self,
        router: Router,
        models: ServedModels,
        executor: Executor,
        queue_timeout_s: float | None = None,
        grammars: GrammarPool | None = None,
    ) -> None:
        """Args:
        router: gives out capacity.
        models: who can serve.
        executor: where prompts are rendered and tokenised.
        queue_timeout_s: how long a request may wait for room; None = for ever.
        grammars: where grammars are made; None = in threads of its own.
        """
        self.grammars = grammars or GrammarPool()
        self.router = router
        self.models = models
        self.executor = executor
        self.queue_timeout_s = queue_timeout_s
        self._settling: set[asyncio.Task[None]] = set()

    async def admit(
        self, call: GenerationCall, context: RequestContext, only: str | None = None
    ) -> Admitted:
        """Find a model for the request, waiting in the queue if all are busy.

        Args:
            call: the request.
            context: whose it is.
            only: the one model that may serve it, which has begun the answer unless the call reads
                hidden states; None = any.

        Cancelling is safe at any point: the worker is told, and the reservation is released
        when the worker has let go.

        Raises:
            ApiError: no model serves it, now or ever.
        """
        # Where names select models, the only one that may serve is the one to wait for.
        name = call.model if only is None else only
        has_begun = only is not None and call.hidden_read is None
        ticket = self.router.open(RouteRequest(context.key, name, has_begun=has_begun))
        try:
            for model in self.models:
                if only not in (None, model.name):
                    passed_by = ModelUnavailable(f"This request is for model {only} alone.")
                    self.router.rule_out(ticket, model.name, passed_by)
            return await _Admission(self, ticket, call, context).run()
        finally:
            self.router.close(ticket)

    def settle(self, reservation: Reservation, handle: WorkerHandle) -> None:
        """Release the reservation of an abandoned submission once the worker has let go."""

        async def wait() -> None:
            await handle.settled(reservation.request_id)
            reservation.failed()

        task = asyncio.create_task(wait())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)


class _Admission:
    """One request on its way to a model."""

    def __init__(
        self,
        admissions: Admissions,
        ticket: Ticket,
        call: GenerationCall,
        context: RequestContext,
    ) -> None:
        self._admissions = admissions
        self._router = admissions.router
        self._ticket = ticket
        self._call = call
        self._context = context
        self._prepared: dict[str, Prepared] = {}
        self._deadline: float | None = None

    async def run(self) -> Admitted:
        try:
            return await self._find()
        except _NothingToGenerate as nothing:
            return self._answered(nothing.model)

    async def _find(self) -> Admitted:
        while True:
            reservation = await self._reserve()
            admitted = await self._submit(reservation)
            if admitted is not None:
                self._tried().pop(admitted.model.name, None)
                self._note_unready_before(admitted.model.name)
                return admitted

    async def _reserve(self) -> Reservation:
        while True:
            for name in await self._candidates():
                if name not in self._prepared:
                    await self._check(name)
                    break  # What was learned, and the time it took, may have changed the order.
                reservation = self._router.try_reserve(self._ticket, name)
                if reservation is not None:
                    return reservation
                state = self._admissions.models[name].state
                self._note(name, "busy" if state == "ready" else state)
            else:
                granted = await self._wait()
                if granted is not None:
                    return granted

    async def _candidates(self) -> tuple[str, ...]:
        """The router's; when no model is up, first see whether waiting for one makes sense."""
        try:
            return self._router.candidates(self._ticket)
        except (ModelLoading, ModelUnavailable):
            pinned = self._router.policy.pinned(self._ticket.request)
            for model in self._admissions.models:
                is_candidate = pinned in (None, model.name)
                if is_candidate and model.name not in self._ticket.ruled_out:
                    await self._rule_out_if_too_small(model)
            return self._router.candidates(self._ticket)

    async def _rule_out_if_too_small(self, model: ServedModel) -> None:
        """A model that is down could not hold the request if it were up."""
        most, text = model.most_tokens, model.text
        if most is None or text is None:
            return
        loop = asyncio.get_running_loop()
        try:
            prompt = await loop.run_in_executor(
                self._admissions.executor, text.prepare, self._call, most
            )
            check_fits(model.name, prompt, most)
        except ContextLengthExceeded as error:
            self._give_up(model.name, error, "too long", most)
        except ApiError:
            return  # Whatever else is wrong with it is said by a model that is up.

    async def _wait(self) -> Reservation | None:
        """Wait for room, counting from the first time; None = there are models to look at."""
        timeout_s = self._admissions.queue_timeout_s
        if timeout_s is not None and self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(self._deadline):
                return await _answer(self._router, self._ticket)
        except TimeoutError:
            self._context.outcome["rejected"] = "timeout"
            raise self._router.overloaded(f"No model had room within {timeout_s:g} s.") from None

    async def _check(self, name: str) -> None:
        """Prepare the request for a model and tell the router what the model can hold of it."""
        model = self._admissions.models[name]
        text, limits = model.text, model.limits
        if text is None or limits is None:
            self._give_up(name, ModelLoading(f"Model {name} is loading."), "not ready")
            return
        loop = asyncio.get_running_loop()
        try:
            prompt = await loop.run_in_executor(
                self._admissions.executor, text.prepare, self._call, limits.max_seq_tokens
            )
            check_fits(name, prompt, limits.max_seq_tokens)
        except ContextLengthExceeded as error:
            self._give_up(name, error, "too long", limits.max_seq_tokens)
            return
        if prompt.grammar_chars:
            work = partial(text.with_grammar, prompt)
            prompt = await self._admissions.grammars.run(
                work, prompt.grammar_chars, self._context.client
            )
        sampling = sampling_params(
            self._call,
            prompt,
            limits,
            defaults=text.generation_defaults,
            budgets=text.thinking.budgets,
            vocab_size=text.vocab_size,
        )
        self._prepared[name] = Prepared(prompt, sampling)
        if sampling.max_tokens < 1:
            raise _NothingToGenerate(model)
        room = limits.max_seq_tokens - prompt.num_tokens
        if self._call.max_tokens is None or self._call.max_tokens <= room:
            self._router.fits(self._ticket, name)
        else:
            self._note(name, "too small")
            self._router.fits(self._ticket, name, only=limits.max_seq_tokens)

    @property
    def _prompt_field(self) -> str:
        return "prompt" if self._call.raw_prompts else "messages"

    async def _submit(self, reservation: Reservation) -> Admitted | None:
        """Offer the request to the reserved model; None = look for another."""
        name, timings = reservation.model, self._context.timings
        model, prepared = self._admissions.models[name], self._prepared[name]
        reservation.submitted()
        try:
            stream = await model.handle.submit(
                self._context.key, prepared.prompt.prompt_bytes, prepared.sampling
            )
        except WorkerRefusal as refusal:
            self._refused(reservation, refusal)
            return None
        except (WorkerLost, ModelLoading, ModelUnavailable) as error:
            self._give_up(name, error, error.code)
            reservation.failed()
            return None
        except asyncio.CancelledError:
            self._admissions.settle(reservation, model.handle)
            raise
        except LuceError:
            reservation.failed()
            raise
        timings.admitted_ns = timings.clock_ns()
        reservation.admitted()
        stream.retired.add_done_callback(_release(reservation, timings))
        return Admitted(model, prepared.prompt, prepared.sampling, stream, reservation)

    def _answered(self, model: ServedModel) -> Admitted:
        """The request as if a worker had given all the output it may have: none."""
        prepared, timings = self._prepared[model.name], self._context.timings
        timings.admitted_ns = timings.retired_ns = timings.clock_ns()
        usage = Usage(
            prompt_tokens=prepared.prompt.num_tokens, cached_tokens=0, completion_tokens=0
        )
        times = WorkerTimings(admitted_ns=timings.admitted_ns, retired_ns=timings.retired_ns)
        stream = WorkerStream(self._context.key, 0, lambda _: None)
        stream.retire(Retired(self._context.key, "length", usage, times))
        return Admitted(model, prepared.prompt, prepared.sampling, stream, None)

    def _refused(self, reservation: Reservation, refusal: WorkerRefusal) -> None:
        name = reservation.model
        if refusal.reason == "failed":
            reservation.failed()
            raise refusal.error or InternalError(f"Model {name} could not take the request.")
        if refusal.reason == "never_fits":
            error = ContextLengthExceeded(
                refusal.detail or f"Model {name} can never hold this request."
            )
            self._give_up(name, error, "too long")
        elif refusal.reason == "draining":
            self._give_up(name, ModelUnavailable(f"Model {name} is stopping."), "draining")
        else:
            self._note(name, "busy")
        reservation.refused()

    def _give_up(self, name: str, error: ApiError, reason: str, holds: int = 0) -> None:
        if isinstance(error, ContextLengthExceeded):
            error.param = self._prompt_field
        self._note(name, reason)
        self._router.rule_out(self._ticket, name, error, holds)

    def _note(self, name: str, reason: str) -> None:
        self._tried()[name] = reason

    def _note_unready_before(self, chosen: str) -> None:
        """Models that would have come first and were no candidates; a name leaves no choice."""
        if self._router.policy.pinned(self._ticket.request) is not None:
            return
        for view in self._router.views():
            if view.name == chosen:
                return
            if view.state != "ready":
                self._tried().setdefault(view.name, view.state)

    def _tried(self) -> dict[str, str]:
        tried: dict[str, str] = self._context.outcome.setdefault("passed_over", {})
        return tried


class _NothingToGenerate(Exception):
    """The request's budgets leave it no output at this model."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model.name)
        self.model = model


class _FutureWaiter:
    """A `Waiter` somebody awaits."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Reservation | None] = asyncio.get_running_loop().create_future()

    def grant(self, reservation: Reservation) -> bool:
        if self.answer.done():
            return False
        self.answer.set_result(reservation)
        return True

    def reject(self, error: ApiError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def look_again(self) -> None:
        if not self.answer.done():
            self.answer.set_result(None)


async def _answer(router: Router, ticket: Ticket) -> Reservation | None:
    """The router's answer to a wait; None = there are other models to look at."""
    waiter = _FutureWaiter()
    router.wait(ticket, waiter)
    try:
        return await waiter.answer
    except asyncio.CancelledError:
        # The grant may have come in the same turn of the loop in which we were cancelled.
        answer = waiter.answer
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            granted = answer.result()
            if granted is not None:
                granted.unused()
        raise


def _release(
    reservation: Reservation, timings: RequestTimings
) -> Callable[[asyncio.Future[Any]], None]:
    def retired(_: asyncio.Future[Any]) -> None:
        timings.retired_ns = timings.clock_ns()
        reservation.retired()

    return retired
