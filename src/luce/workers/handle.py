"""WorkerHandle: the listener's view of one model's worker, over every process it has had.

Event loop only. Owns the open requests and their terminal events; knows no process (that is
`supervisor`), no text and no routing.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from luce.errors import (
    ApiError,
    ContextLengthExceeded,
    InternalError,
    LuceError,
    ModelLoading,
    ModelUnavailable,
    ShuttingDown,
    WorkerLost,
    WorkerStartError,
    from_wire,
)
from luce.protocol import messages as wire
from luce.protocol.frames import FrameConnection, FrameGarbage, FrameTooLarge
from luce.protocol.paths import path_to_wire, text_to_wire
from luce.protocol.sampling import SamplingParams
from luce.workers.open_control import OpenControl
from luce.workers.open_request import OpenRequest, WorkerRefusal
from luce.workers.stream import WorkerStream
from luce.workers.vocabulary_lesson import VocabularyLesson, VocabularySource

__all__ = ["WorkerHandle", "WorkerRefusal", "WorkerState", "WorkerStream"]

log = logging.getLogger(__name__)

TOKEN_BYTES = 4


class WorkerState(enum.Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    """No process has said hello."""
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    """Admits nothing more; running requests end."""
    EVICTED = "evicted"
    """The process lives and its model has left the device."""
    LOST = "lost"
    """The process died; the supervisor starts another after a while."""
    STOPPED = "stopped"
    """Ended on purpose."""


_STATE_AFTER = {"evict": WorkerState.EVICTED, "reinstate": WorkerState.READY}


@dataclass(slots=True)
class _Connection:
    """What belongs to one process and dies with it."""

    frames: FrameConnection
    lesson: VocabularyLesson
    requests: dict[str, OpenRequest] = field(default_factory=dict)
    controls: dict[int, OpenControl] = field(default_factory=dict)
    draining: bool = False
    stopping: bool = False


class WorkerHandle:
    """Submits requests to a worker and gives each its stream.

    Attributes:
        name: the model's name.
        state: see `WorkerState`.
        ready: what the latest process that came up resolved; None before the first.
        progress: how far the load is; None outside of one.
        stats: the latest counters of the current process, or of the last one.
        num_processes: processes it has had.
        pid: the current process's id, as it said itself; None before its hello.
        fault: why the worker cannot serve; None while it can.
        vocabulary: lists the model's tokens for the first grammar of each process; may be set
            later. None: grammars are refused.
        on_change: called, without arguments, after changes of state or counters, admissions,
            refusals and retirements; once for what arrived together.
    """

    def __init__(self, spec: wire.LoadSpec, vocabulary: VocabularySource | None = None) -> None:
        self.name = spec.name
        self.vocabulary = vocabulary
        self.state = WorkerState.STARTING
        self.ready: wire.Ready | None = None
        self.progress: wire.LoadProgress | None = None
        self.stats = wire.WorkerStats()
        self.num_processes = 0
        self.pid: int | None = None
        self.fault: LuceError | None = None
        self.on_change: list[Callable[[], None]] = []
        self._spec = spec
        self._connection: _Connection | None = None
        self._op_ids = itertools.count(1)
        self._down = asyncio.Event()
        self._down.set()

    @property
    def limits(self) -> wire.Limits | None:
        """What the worker can hold; None before the first `Ready`."""
        return self.ready.limits if self.ready is not None else None

    @property
    def in_flight(self) -> int:
        """Requests the worker may hold something of, unanswered submissions included."""
        return len(self._connection.requests) if self._connection is not None else 0

    @property
    def num_decoding(self) -> int:
        """Those of them whose output has begun."""
        requests = self._connection.requests.values() if self._connection is not None else ()
        return sum(r.stream is not None and r.stream.has_output for r in requests)

    async def connect(self, sock: socket.socket) -> None:
        """Talk to a new process over `sock` and tell it what to load.

        Raises:
            OSError: the socket is unusable.
        """
        if self._connection is not None:
            raise RuntimeError(f"{self.name} is connected already")
        frames = FrameConnection(self._on_messages, self._on_closed)
        self._connection = _Connection(frames, VocabularyLesson(frames))
        try:
            await frames.open(sock)
        except BaseException:
            self._connection = None
            raise
        self._down.clear()
        self.num_processes += 1
        self.stats = wire.WorkerStats()
        self.pid = None
        self._set_state(WorkerState.STARTING)
        spec = msgspec.structs.replace(
            self._spec, name=text_to_wire(self.name), path=path_to_wire(self._spec.path)
        )
        frames.send(wire.Load(spec))

    async def submit(
        self, request_id: str, prompt: bytes, sampling: SamplingParams
    ) -> WorkerStream:
        """Offer a request; returns once the worker has admitted it.

        A caller that is cancelled meanwhile makes the worker get a `Cancel`; the request stays
        open (`settled`, `in_flight`) until the worker has answered.

        Args:
            request_id: unique among the open requests.
            prompt: int32 little-endian token ids.
            sampling: validated parameters.

        Raises:
            WorkerRefusal: the worker said no, or it is draining.
            ModelLoading: the worker is not ready yet.
            ModelUnavailable: the worker is down.
            WorkerLost: the worker died before it answered.
        """
        connection = self._serving()
        if sampling.grammar is not None:
            await connection.lesson.give(self.vocabulary)
            connection = self._serving()
        if request_id in connection.requests:
            raise ValueError(f"request {request_id} is open already")
        try:
            connection.frames.send(wire.Submit(request_id, prompt, sampling))
        except FrameTooLarge as error:
            refusal = ContextLengthExceeded(f"The prompt is too long for any model: {error}")
            raise WorkerRefusal("never_fits", refusal, str(error)) from error
        except FrameGarbage as error:
            raise WorkerRefusal("failed", InternalError(str(error)), str(error)) from error
        request = OpenRequest(request_id, len(prompt) // TOKEN_BYTES)
        connection.requests[request_id] = request
        try:
            return await request.admitted
        except asyncio.CancelledError:
            if connection.requests.get(request_id) is request:
                connection.frames.send(wire.Cancel(request_id, "client_gone"))
            raise

    async def settled(self, request_id: str) -> None:
        """Wait until the worker holds nothing of this request; at once if it is unknown."""
        if self._connection is not None and request_id in self._connection.requests:
            await asyncio.shield(self._connection.requests[request_id].settled)

    async def control(
        self, op: wire.ControlOp, level: wire.EvictionLevel | None = None
    ) -> wire.ControlDone:
        """Run an operation on the whole worker and wait for its end.

        Args:
            op: which.
            level: what an eviction keeps.

        Raises:
            InternalError: the operation failed; the message says how.
            ModelUnavailable: the worker is down.
            WorkerLost: the worker died meanwhile.
        """
        connection = self._connection
        if connection is None:
            raise ModelUnavailable(f"Model {self.name} is not running.")
        op_id = next(self._op_ids)
        control = connection.controls[op_id] = OpenControl(op)
        connection.frames.send(wire.Control(op_id, op, level))
        if op == "drain":
            self._drain(connection)
        try:
            return await control.done
        finally:
            connection.controls.pop(op_id, None)

    def freeze_layout(self) -> None:
        """Every further process gets the sizes that the first one resolved."""
        if self.limits is not None:
            sizes = msgspec.structs.asdict(self.limits)
            self._spec = msgspec.structs.replace(self._spec, **sizes)

    def shutdown(self, grace_s: float) -> None:
        """Tell the worker to finish what runs and exit; its end then counts as STOPPED."""
        if self._connection is None:
            self._set_state(WorkerState.STOPPED)
            return
        self._connection.stopping = True
        self._connection.frames.send(wire.Shutdown(grace_s))
        self._drain(self._connection)

    def disconnect(self, reason: LuceError) -> None:
        """Give the process up; what it held ends as when it dies."""
        if self._connection is not None:
            self._connection.frames.close(reason, wire.Shutdown(0))

    def start_failed(self, fault: LuceError) -> None:
        """There is no process to connect to."""
        self.fault = fault
        self._set_state(WorkerState.LOST)

    async def wait_down(self) -> None:
        """Wait until no process is connected."""
        await self._down.wait()

    def _serving(self) -> _Connection:
        if self.state is WorkerState.DRAINING:
            raise WorkerRefusal("draining", detail=f"Model {self.name} takes no new requests.")
        if self.state in (WorkerState.STARTING, WorkerState.LOADING):
            raise ModelLoading(f"Model {self.name} is loading; try again in a moment.")
        if self.state is not WorkerState.READY or self._connection is None:
            raise ModelUnavailable(f"Model {self.name} is not running; try again later.")
        return self._connection

    def _drain(self, connection: _Connection) -> None:
        connection.draining = True
        self._set_state(WorkerState.DRAINING)

    def _set_state(self, state: WorkerState) -> None:
        self.state = state
        self._notify()

    def _notify(self) -> None:
        for callback in list(self.on_change):
            callback()

    # --- what the worker says ------------------------------------------------------------

    def _on_messages(self, batch: list[wire.ToListener]) -> None:
        changed = False
        for message in batch:
            connection = self._connection
            if connection is None:
                return
            if isinstance(message, wire.StepOutput):
                self._on_step_output(connection, message)
            elif isinstance(message, wire.Admitted | wire.Refused | wire.Retired):
                self._on_request_news(connection, message)
                changed = True
            else:
                self._on_worker_news(connection, message)
                changed = True
        if changed:
            self._notify()

    def _on_step_output(self, connection: _Connection, output: wire.StepOutput) -> None:
        for delta in output.deltas:
            request = connection.requests.get(delta.request_id)
            if request is not None and request.stream is not None:
                request.stream.push(delta)

    def _on_request_news(
        self, connection: _Connection, news: wire.Admitted | wire.Refused | wire.Retired
    ) -> None:
        request = connection.requests.get(news.request_id)
        if request is None:
            log.warning("message of an unknown request", extra={"request_id": news.request_id})
        elif isinstance(news, wire.Admitted):
            frames = connection.frames
            request.admit(
                news.cached_tokens,
                lambda reason: frames.send(wire.Cancel(news.request_id, reason)),
            )
        else:
            del connection.requests[news.request_id]
            if isinstance(news, wire.Refused):
                request.refuse(news)
            else:
                request.retire(news)

    def _on_worker_news(
        self,
        connection: _Connection,
        news: wire.Hello
        | wire.LoadProgress
        | wire.Ready
        | wire.ControlDone
        | wire.Stats
        | wire.Fault,
    ) -> None:
        if isinstance(news, wire.Stats):
            self.stats = news.stats
        elif isinstance(news, wire.LoadProgress):
            self.progress = news
        elif isinstance(news, wire.ControlDone):
            control = connection.controls.get(news.op_id)
            if control is not None:
                self._on_control_done(control, news)
        elif isinstance(news, wire.Fault):
            self._on_fault(news)
        elif isinstance(news, wire.Hello):
            self._greet(connection, news)
        else:
            self.ready, self.progress, self.fault = news, None, None
            self.state = WorkerState.DRAINING if connection.draining else WorkerState.READY

    def _on_control_done(self, control: OpenControl, news: wire.ControlDone) -> None:
        control.answer(news)
        if not news.error:
            self.state = _STATE_AFTER.get(control.op, self.state)

    def _greet(self, connection: _Connection, hello: wire.Hello) -> None:
        self.pid = hello.pid
        if hello.version != wire.PROTOCOL_VERSION:
            connection.frames.close(
                WorkerStartError(
                    f"The worker of {self.name} speaks protocol {hello.version}, this server "
                    f"{wire.PROTOCOL_VERSION}; install the same luce for both."
                )
            )
        elif not connection.draining:
            self.state = WorkerState.LOADING

    def _on_fault(self, news: wire.Fault) -> None:
        if news.fatal:
            self.fault = from_wire(news.error, news.message)
        self._log_trouble("worker fault", news.message)

    def _on_closed(self, reason: Exception | None) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self.progress = None
        if not connection.stopping:
            self._keep_fault(reason)
        for request in connection.requests.values():
            request.lose(self._loss(connection, "while it held this request; try again"))
        for control in connection.controls.values():
            control.lose(self._loss(connection, "on the way"))
        self._down.set()
        self._set_state(WorkerState.STOPPED if connection.stopping else WorkerState.LOST)

    def _keep_fault(self, reason: Exception | None) -> None:
        if isinstance(reason, LuceError):
            self.fault = reason
        elif self.fault is None:
            self.fault = WorkerLost(f"The process of model {self.name} ended.")
        self._log_trouble("worker lost", str(self.fault))

    def _log_trouble(self, event: str, error: str) -> None:
        # Before the first Ready the start fails, and whoever started us says why, once.
        level = logging.DEBUG if self.ready is None else logging.ERROR
        log.log(level, event, extra={"model": self.name, "error": error})

    def _loss(self, connection: _Connection, when: str) -> ApiError:
        """One error a request: a shared instance would collect the tracebacks of all."""
        if connection.stopping:
            return ShuttingDown("The server is stopping.")
        return WorkerLost(f"Model {self.name} stopped {when}.")
