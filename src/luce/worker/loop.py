"""The worker's loop, the file to read first: take the inbox, schedule, step, emit.

One thread, the engine's. Each turn handles what the listener said, plans a step, starts it,
and sends what the oldest step under way brought. On a device that works by itself the loop
keeps one step more under way (`depth` 1), so that the device never waits for the host.
"""

from __future__ import annotations

import logging
from collections import deque

import numpy as np
import numpy.typing as npt

from luce.errors import ApiError, DeviceOutOfMemory, InternalError
from luce.protocol import messages as wire
from luce.scheduler.outcome import RetiredSequence
from luce.scheduler.plan import StepPlan, StepResult
from luce.scheduler.scheduler import Scheduler
from luce.worker import convert
from luce.worker.admission import Admission
from luce.worker.grammar_desk import GrammarDesk
from luce.worker.ports import (
    GrammarChecked,
    Incoming,
    LoopOptions,
    PendingStep,
    Post,
    StepEngine,
)
from luce.worker.residency import Residency

log = logging.getLogger(__name__)

STATS_INTERVAL_NS = 250_000_000

LOADS_INTERVAL_NS = 5_000_000_000
"""Between two looks at the experts' counters while steps run: a look waits for a step's end."""

MAX_FAILED_STEPS = 3
"""Steps that may fail in a row; a device that never recovers needs a new process."""


class WorkerLoop:
    """Runs one model until it is told to shut down."""

    def __init__(
        self, engine: StepEngine, scheduler: Scheduler, post: Post, options: LoopOptions
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._post = post
        self._options = options
        self._grammars = GrammarDesk(engine, post)
        self._residency = Residency(engine, scheduler, options.clock_ns)
        self._admission = Admission(scheduler, self._grammars, self._residency, post, options)
        self._inbox: deque[Incoming] = deque()
        self._under_way: deque[tuple[StepPlan, PendingStep]] = deque()
        self._stop_at_ns: int | None = None
        self._stats_at_ns = 0
        self._loads_at_ns = 0
        self._loads: npt.NDArray[np.int64] | None = None
        self._is_idle = True
        self._failed_steps = 0

    def run(self) -> None:
        """Serve until Shutdown is done; every admitted request has then been retired.

        Raises:
            Exception: a bug of ours or a broken device; the worker must not go on.
        """
        try:
            while not self._is_finished():
                self._take_in()
                self._emit_retired(self._scheduler.take_retired())
                self._advance()
                self._report()
        finally:
            self._grammars.close()

    # --- inbox -----------------------------------------------------------------------------

    def _take_in(self) -> None:
        """Handle what came. While a device stands idle, no more than fills it a step."""
        wait = self._is_idle and self._stop_at_ns is None and not self._inbox
        self._inbox.extend(self._post.receive(wait=wait))
        while self._inbox:
            self._handle(self._inbox.popleft())
            if self._options.depth and not self._under_way and self._scheduler.fills_step:
                return

    def _handle(self, message: Incoming) -> None:
        if isinstance(message, wire.Submit):
            self._admission.submit(message)
        elif isinstance(message, GrammarChecked):
            self._admission.submit_checked(message)
        elif isinstance(message, wire.Cancel):
            self._admission.cancel(message.request_id)
        elif isinstance(message, wire.Control):
            self._control(message)
        elif isinstance(message, wire.Vocabulary):
            self._grammars.learn(message)
        elif isinstance(message, wire.Shutdown):
            self._admission.drain()
            stop_at_ns = self._options.clock_ns() + int(message.grace_s * 1e9)
            self._stop_at_ns = min(stop_at_ns, self._stop_at_ns or stop_at_ns)
            self._admission.give_up_waiting()
        else:
            log.warning("second Load ignored")
        self._is_idle = self._is_idle and not self._scheduler.has_work

    def _control(self, control: wire.Control) -> None:
        if control.op in ("evict", "reinstate"):
            self._change_residency(control)
            return
        if control.op == "drain":
            self._admission.drain()
        else:
            try:
                self._scheduler.check_integrity()
            except AssertionError as error:
                self._post.send(wire.ControlDone(control.op_id, f"integrity: {error}"))
                raise
            self._send_stats()
        self._post.send(wire.ControlDone(control.op_id))

    def _change_residency(self, control: wire.Control) -> None:
        try:
            done = self._residency.change(control, is_busy=self._admission.holds_requests)
        except Exception:
            detail = "The model's process failed; its log has the details."
            self._post.send(wire.ControlDone(control.op_id, detail))
            raise
        self._post.send(done)
        self._send_stats()

    # --- step ------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Start a step if there is one; take the oldest result when it is due."""
        plan = self._scheduler.plan() if self._scheduler.has_work else None
        try:
            if plan is not None:
                self._under_way.append((plan, self._engine.step(plan)))
            if self._under_way and (plan is None or len(self._under_way) > self._options.depth):
                plan, pending = self._under_way.popleft()
                self._emit(plan, pending.result())
        except ApiError as error:
            self._step_failed(plan, error)

    def _emit(self, plan: StepPlan, result: StepResult) -> None:
        self._failed_steps = 0
        outcome = self._scheduler.apply(plan, result)
        for output in convert.step_outputs(plan.step, outcome):
            self._post.send(output)
        for sequence in outcome.retired:
            if sequence.finish == "error":
                extra = {"request_id": sequence.request_id, "error": sequence.detail}
                log.error("sequence failed", extra=extra)
        self._emit_retired(outcome.retired)

    def _emit_retired(self, sequences: tuple[RetiredSequence, ...]) -> None:
        for sequence in sequences:
            self._post.send(convert.retired(sequence))

    def _step_failed(self, plan: StepPlan | None, error: ApiError) -> None:
        log.exception("step failed")
        self._failed_steps += 1
        is_ours = isinstance(error, InternalError)
        detail = "The model failed; the server's log has the details." if is_ours else str(error)
        name = type(error).__name__
        self._await_steps()
        # Without the largest prompt there may be memory for the others; that is tried once.
        may_spare = isinstance(error, DeviceOutOfMemory) and self._failed_steps == 1
        if plan is None or not may_spare or not self._scheduler.fail_largest(plan, name, detail):
            self._scheduler.fail_all(name, detail)
        self._emit_retired(self._scheduler.take_retired())
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise error

    def _fail_all(self, error: str, detail: str) -> None:
        """End every sequence."""
        self._await_steps()
        self._scheduler.fail_all(error, detail)
        self._emit_retired(self._scheduler.take_retired())

    def _await_steps(self) -> None:
        """Until then the device is not done with blocks."""
        while self._under_way:
            _, pending = self._under_way.popleft()
            try:
                pending.result()
            except ApiError:
                log.exception("step behind a failed one failed")

    # --- the worker itself -----------------------------------------------------------------

    def _is_finished(self) -> bool:
        if self._stop_at_ns is None:
            return False
        if self._scheduler.has_work and self._options.clock_ns() >= self._stop_at_ns:
            self._fail_all("ShuttingDown", "The server is stopping.")
        return not self._scheduler.has_work

    def _report(self) -> None:
        """Statistics, and the invariants each time work ran out."""
        now_ns = self._options.clock_ns()
        if not self._scheduler.has_work and not self._is_idle:
            self._is_idle = True
            self._scheduler.check_integrity()
            self._loads_at_ns, self._loads = now_ns, self._engine.expert_loads()
            self._send_stats()
        elif not self._is_idle and now_ns - self._stats_at_ns >= STATS_INTERVAL_NS:
            if now_ns - self._loads_at_ns >= LOADS_INTERVAL_NS:
                self._loads_at_ns, self._loads = now_ns, self._engine.expert_loads()
            self._send_stats()

    def _send_stats(self) -> None:
        self._stats_at_ns = self._options.clock_ns()
        self._post.send(convert.stats(self._scheduler.stats(), self._loads))
