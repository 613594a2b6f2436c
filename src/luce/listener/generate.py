"""The path every dialect shares: a call becomes one ordered stream of events.

`async with generator.generate(call, context) as generation:` admits the request, and an
`ApiError` up to there can still become any HTTP status. `generation.each()` then gives
Started, TextDelta..., and exactly one of Finished and Failed. Leaving the block ends whatever
still runs: the worker is told, and the reservation outlives the block until it has let go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Self

from luce.errors import ApiError, ClientGone, InternalError, LuceError
from luce.listener.admission import Admissions, Admitted
from luce.listener.connection import SlowClient
from luce.listener.context import RequestContext
from luce.listener.ports import Output
from luce.protocol.messages import CancelReason, SeqDelta
from luce.protocol.sampling import HiddenStates
from luce.text.call import GenerationCall
from luce.text.events import Failed, Finished, GenEvent, Started
from luce.workers.stream import WorkerStream

log = logging.getLogger(__name__)


class Generator:
    """Runs generations; one per server.

    Attributes:
        num_started: generations asked for so far.
    """

    def __init__(self, admissions: Admissions) -> None:
        self._admissions = admissions
        self._open: set[Generation] = set()
        self.num_started = 0

    @property
    def num_running(self) -> int:
        """Generations admitted and not ended."""
        return sum(generation.is_admitted for generation in self._open)

    def generate(
        self, call: GenerationCall, context: RequestContext, only: str | None = None
    ) -> Generation:
        """A generation, not yet admitted; by the model `only` if that is given."""
        self.num_started += 1
        return Generation(self._admissions, self._open, call, context, only)

    def abort_all(self, error: ApiError) -> None:
        """End every generation with this error, those as well that wait for their admission."""
        for generation in list(self._open):
            generation.abort(error)


class Generation:
    """One generation, from admission to its last event."""

    def __init__(
        self,
        admissions: Admissions,
        open_: set[Generation],
        call: GenerationCall,
        context: RequestContext,
        only: str | None = None,
    ) -> None:
        self._admissions = admissions
        self._only = only
        self._open = open_
        self._call = call
        self._context = context
        self._arriving: asyncio.Task[object] | None = None
        self._admitted: Admitted | None = None
        self._aborted: ApiError | None = None
        self._has_ended = False

    @property
    def is_admitted(self) -> bool:
        """Whether a model has taken it."""
        return self._admitted is not None

    async def __aenter__(self) -> Self:
        self._open.add(self)
        try:
            self._admitted = await self._admit()
        except BaseException:
            self._open.discard(self)
            raise
        self._context.outcome["model"] = self._admitted.model.name
        return self

    async def _admit(self) -> Admitted:
        """As `Admissions.admit`; an abort meanwhile interrupts it."""
        self._arriving = task = asyncio.current_task()
        others = 0 if task is None else task.cancelling()
        try:
            return await self._admissions.admit(self._call, self._context, self._only)
        except asyncio.CancelledError:
            # The client may have gone as well: then its cancellation is left.
            if task is None or self._aborted is None or task.uncancel() > others:
                raise
            raise self._aborted from None
        finally:
            self._arriving = None

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self._open.discard(self)
        if self._admitted is None:
            return
        if not self._has_ended:
            self._cancel("slow_reader" if isinstance(error, SlowClient) else "client_gone")
        if self._admitted.reservation is not None:
            self._admitted.reservation.drained()

    def abort(self, error: ApiError) -> None:
        """End with this error: at once before admission, else when the worker has stopped."""
        if self._aborted is None and not self._has_ended:
            self._aborted = error
            self._cancel("shutdown")
            if self._arriving is not None:
                self._arriving.cancel()

    async def each(self, take: Callable[[list[GenEvent]], None]) -> None:
        """Give all events to `take`, in order and as they come; returns after the terminal one.

        Raises:
            SlowClient: the worker gave up on this client.
            Exception: whatever `take` raises ends this.
        """
        if self._has_ended or self._admitted is None:
            return
        stream = self._admitted.stream
        started, output = self._start(self._admitted)
        take([started])
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def arrived() -> None:
            if ended.done():
                return
            try:
                if events := self._read(stream, output):
                    take(events)
            except Exception as error:  # raised again below, in the request's task
                ended.set_result(error)
            else:
                if self._has_ended:
                    ended.set_result(None)

        stream.follow(arrived)
        try:
            failure = await ended
        except asyncio.CancelledError:
            # What failed may be why we were cancelled: say that.
            failure = ended.result() if ended.done() and not ended.cancelled() else None
            if failure is None:
                raise
        finally:
            stream.unfollow()
        if failure is not None:
            raise failure

    def _read(self, stream: WorkerStream, output: Output) -> list[GenEvent]:
        """The events of what has arrived."""
        events: list[GenEvent] = []
        try:
            batch = stream.take()
            self._context.timings.token()
            self._take(batch, output, events)
        except ApiError as error:
            events.append(self._fail(error))
        except ClientGone:
            raise
        except Exception:
            # A bug in what reads the output is the end of this answer, not of its connection.
            log.exception("output could not be read")
            events.append(self._fail(InternalError.logged()))
            self._cancel("client_gone")
        return events

    async def read_hidden(self) -> tuple[Admitted, HiddenStates]:
        """Wait for what is read of the prompt; in place of `each`, for a call that reads.

        Raises:
            ApiError: it failed.
            SlowClient: the worker gave up on this client.
        """
        if self._admitted is None:
            raise InternalError("The prompt was not admitted.")
        try:
            while batch := await self._admitted.stream.next():
                for delta in batch:
                    if delta.hidden is not None:
                        return self._admitted, self._read_out(self._admitted, delta.hidden)
                    if delta.finish is not None:
                        raise self._unfinished(delta)
        except ApiError as error:
            raise self._fail(error).error from error
        raise InternalError("The model's output broke off.")

    def _read_out(self, admitted: Admitted, hidden: HiddenStates) -> HiddenStates:
        self._has_ended = True
        self._context.outcome.update(
            finish="stop", prompt_tokens=admitted.prompt.num_tokens, cached_tokens=0, tokens=0
        )
        return hidden

    def _start(self, admitted: Admitted) -> tuple[Started, Output]:
        text, prompt, cached = admitted.model.text, admitted.prompt, admitted.stream.cached_tokens
        if text is None:
            raise InternalError(f"Model {admitted.model.name} has lost its tokenizer.")
        budget = admitted.sampling.reasoning
        output = text.pipeline(prompt, prompt.num_tokens, cached, budget)
        return Started(admitted.model.name, cached, prompt.num_tokens), output

    def _take(self, batch: list[SeqDelta], output: Output, events: list[GenEvent]) -> None:
        """Turn what the worker sent into events; raises after those that came before."""
        if not batch:
            raise InternalError("The model's output broke off.")
        for delta in batch:
            if delta.finish == "cancelled" or delta.finish == "error":
                raise self._unfinished(delta)
            events += output.feed(delta.token_ids, delta.finish, delta.logprobs)
            if events and isinstance(events[-1], Finished):
                self._finish(events[-1])
                break
        if output.stopped:
            self._cancel("stop_string")

    def _finish(self, event: Finished) -> None:
        self._has_ended = True
        usage = event.usage
        self._context.outcome.update(
            finish=event.reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            tokens=usage.completion_tokens,
        )
        if event.close_kind is not None:
            self._context.outcome["reasoning_close"] = event.close_kind

    def _fail(self, error: ApiError) -> Failed:
        self._has_ended = True
        error = self._aborted or error
        self._context.outcome["error"] = error.code
        return Failed(error)

    def _unfinished(self, delta: SeqDelta) -> LuceError:
        if self._aborted is None and delta.finish == "cancelled":
            return SlowClient("The client left too much output unread.")
        return self._aborted or InternalError("The model failed on this request.")

    def _cancel(self, reason: CancelReason) -> None:
        if self._admitted is not None:
            self._admitted.stream.cancel(reason)
