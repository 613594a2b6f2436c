"""Residents: does with the workers what placement decides, and tells it how that went."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from luce.errors import (
    ApiError,
    DeviceOutOfMemory,
    InternalError,
    LuceError,
    ModelFileError,
    ModelUnavailable,
    PlacementError,
    StartupError,
    WorkerLost,
)
from luce.listener.device_watch import DeviceWatch
from luce.listener.served import ServedModels
from luce.loaders.file_identity import require_unchanged
from luce.placement.coordinator import Coordinator
from luce.placement.residency import Depth, Operation, Outcome
from luce.protocol.messages import ControlDone, ControlOp, EvictionLevel
from luce.protocol.paths import path_from_wire
from luce.routing.router import Router
from luce.workers.handle import WorkerHandle, WorkerState
from luce.workers.supervisor import Supervisor

log = logging.getLogger(__name__)

TRANSITION_LIMIT_S: dict[ControlOp, float] = {"evict": 120.0, "reinstate": 900.0}
"""How long a worker may take. Parking copies at gigabytes a second; coming back may read a file
from a slow disk."""

_MS_PER_S = 1000
_DOWN = (WorkerState.LOST, WorkerState.STOPPED)


ChargeOf = Callable[[str, int], Mapping[str, int]]
"""From a model's name and `Ready.peak_bytes` to bytes by pool."""


class Residents:
    """A `placement.effects.ResidencyEffects`; event loop only.

    Transitions belong to it and not to the requests that caused them: a client that leaves ends
    none.
    """

    def __init__(
        self,
        supervisors: Mapping[str, Supervisor],
        models: ServedModels,
        router: Router,
        watch: DeviceWatch,
    ) -> None:
        """Args:
        supervisors: by model name.
        models: told when states change.
        router: has the requests that wait.
        watch: knows what is free on devices.
        """
        self._supervisors = supervisors
        self._models = models
        self._router = router
        self._watch = watch
        self._coordinator: Coordinator | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._asked: set[str] = set()
        self._checking: set[str] = set()
        self._published = asyncio.Event()
        self._charge_of: ChargeOf | None = None

    def attach(self, coordinator: Coordinator) -> None:
        """Whom to tell; the models are given no requests before `ServedModels.take_turns`."""
        self._coordinator = coordinator
        self._models.hold()
        for name, supervisor in self._supervisors.items():
            supervisor.handle.on_change.append(partial(self._on_change, name, supervisor.handle))

    def charge_by(self, charge_of: ChargeOf) -> None:
        """Who knows, where bytes are counted, what a model counts as once it has loaded."""
        self._charge_of = charge_of

    @property
    def coordinator(self) -> Coordinator:
        """Who decides."""
        if self._coordinator is None:
            raise RuntimeError("no coordinator is attached")
        return self._coordinator

    # --- what the coordinator asks for -----------------------------------------------------

    def start(self, operation: Operation) -> None:
        """Do this with a worker."""
        self._tasks[operation.number] = asyncio.create_task(
            self._run(operation), name=f"{operation.kind}-{operation.model}"
        )

    def abandon(self, operation: Operation) -> None:
        """Stop a load and end its process."""
        task = self._tasks.pop(operation.number, None)
        if task is not None:
            task.cancel()
        self._keep(self._supervisors[operation.model].put_down())

    def probe(self, devices: tuple[str, ...]) -> None:
        """Find out what is free; a question that is being asked is not asked again."""
        new = tuple(device for device in devices if device not in self._asked)
        if new:
            self._asked.update(new)
            self._keep(self._look(new))

    def check(self, model: str) -> None:
        """Look at a model's files, in a thread; as `probe`, not twice at a time."""
        if model not in self._checking:
            self._checking.add(model)
            self._keep(self._check(model))

    def wake(self, after_s: float) -> None:
        """Look again after so long."""
        asyncio.get_running_loop().call_later(after_s, self.coordinator.advance)

    def publish(self) -> None:
        """Tell the router what has changed."""
        self._models.refresh()
        self._published.set()

    async def until_settled(self, model: str) -> None:
        """Wait until nobody waits for this model: it came in, or it does not."""
        while self.coordinator.is_wanted(model):
            self._published.clear()
            await self._published.wait()

    def refuse(self, model: str, error: Callable[[], ApiError]) -> None:
        """End the wait of everyone who waits for this model alone."""
        self._router.reject_waiting(model, error)

    async def evict_now(self, model: str, depth: Depth) -> Outcome:
        """Evict a model outside of any transition, at the start."""
        return await self._evict(Operation(0, model, "evict", depth, 2.0))

    async def close(self) -> None:
        """Give up what is under way; the workers are ended by others."""
        tasks = [*self._tasks.values(), *self._others]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- operations ------------------------------------------------------------------------

    async def _run(self, operation: Operation) -> None:
        began_s = time.monotonic()
        try:
            if operation.kind == "evict":
                outcome = await self._evict(operation)
            else:
                outcome = await self._load(operation, began_s)
        except Exception as error:
            # The border of a transition: whatever went wrong ends it, and nothing else.
            log.exception("transition failed", extra={"model": operation.model})
            outcome = Outcome(error=f"internal error: {error}")
        self._tasks.pop(operation.number, None)
        self.coordinator.finished(operation.number, outcome)

    async def _evict(self, operation: Operation) -> Outcome:
        supervisor = self._supervisors[operation.model]
        handle, depth = supervisor.handle, operation.depth
        was_resident = handle.state is WorkerState.READY
        if was_resident and handle.ready is not None:
            ready = handle.ready
            self._watch.expect(operation.model, ready.weights_bytes + ready.kv_bytes)
        if depth is None or depth == "unload" or not (was_resident or _is_evicted(handle)):
            await supervisor.put_down()
            return Outcome(is_gone=True)
        before = await self._watch.free(operation.model)
        supervisor.rest()
        try:
            done = await self._give_back(supervisor, depth)
        except (WorkerLost, ModelUnavailable):
            return Outcome(is_gone=True)
        except LuceError as error:
            if was_resident:
                supervisor.stay_up()
            return Outcome(error=str(error))
        retained = done.retained_bytes
        await self._watch.comes_back(operation.model, before, retained, operation.patience_s)
        return Outcome(
            retained_bytes=retained,
            host_bytes=done.host_bytes,
            duration_ms=done.duration_ms,
            snapshots_lost=done.snapshots_lost,
        )

    async def _load(self, operation: Operation, began_s: float) -> Outcome:
        supervisor = self._supervisors[operation.model]
        handle = supervisor.handle
        done = ControlDone(0)
        try:
            if _is_evicted(handle):
                done = await _ask(supervisor, "reinstate")
            else:
                await supervisor.bring_up()
        except LuceError as error:
            return Outcome(
                error=str(error),
                is_out_of_memory=_lacked_memory(error),
                is_gone=isinstance(error, StartupError) or handle.state in _DOWN,
            )
        supervisor.stay_up()
        handle.freeze_layout()
        measured_ms = round((time.monotonic() - began_s) * _MS_PER_S)
        outcome = resident_outcome(handle, done, done.duration_ms or measured_ms)
        if self._charge_of is None or handle.ready is None:
            return outcome
        return replace(outcome, charge=self._charge_of(operation.model, handle.ready.peak_bytes))

    async def _give_back(self, supervisor: Supervisor, level: EvictionLevel) -> ControlDone:
        """Evict; host memory that cannot be had is no reason to stay.

        Raises:
            LuceError: it refused, and touched nothing, or its process ended.
        """
        if level == "host":
            try:
                return await _ask(supervisor, "evict", level)
            except InternalError as error:
                extra = {"model": supervisor.handle.name, "error": str(error)}
                log.warning("weights are not parked", extra=extra)
        return await _ask(supervisor, "evict", "cold" if level == "host" else level)

    # --- news ------------------------------------------------------------------------------

    async def _look(self, devices: tuple[str, ...]) -> None:
        try:
            await self._watch.look(devices)
        finally:
            self._asked.difference_update(devices)
        self.coordinator.advance()

    async def _check(self, model: str) -> None:
        spec, problem = self._supervisors[model].spec, ""
        try:
            path = Path(path_from_wire(spec.path))
            await asyncio.to_thread(require_unchanged, path, spec.files)
        except ModelFileError as error:
            problem = str(error)
        finally:
            self._checking.discard(model)
        self.coordinator.checked(model, problem)

    def _on_change(self, name: str, handle: WorkerHandle) -> None:
        if handle.state in _DOWN:
            self.coordinator.lost(name)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)


async def _ask(
    supervisor: Supervisor, op: ControlOp, level: EvictionLevel | None = None
) -> ControlDone:
    """Have a worker do something; one that does not answer in time is ended.

    Raises:
        LuceError: it refused, or its process ended.
    """
    name, limit_s = supervisor.handle.name, TRANSITION_LIMIT_S[op]
    try:
        async with asyncio.timeout(limit_s):
            return await supervisor.handle.control(op, level)
    except TimeoutError:
        log.error("worker does not answer", extra={"model": name, "op": op, "limit_s": limit_s})
        await supervisor.put_down()
        raise WorkerLost(f"Model {name} did not answer for {limit_s:g} s and was ended.") from None


def resident_outcome(handle: WorkerHandle, done: ControlDone, duration_ms: int) -> Outcome:
    """What a model that serves says of itself."""
    ready = handle.ready
    if ready is None:
        return Outcome(duration_ms=duration_ms)
    return Outcome(
        weight_bytes=ready.weights_bytes,
        host_bytes=done.host_bytes,
        duration_ms=duration_ms,
    )


def _lacked_memory(error: LuceError) -> bool:
    """A worker's answer to a reinstatement has words only."""
    if isinstance(error, DeviceOutOfMemory | PlacementError):
        return True
    return any(words in str(error) for words in ("out of memory", "not enough memory"))


def _is_evicted(handle: WorkerHandle) -> bool:
    return handle.state is WorkerState.EVICTED
