"""Residency: evicts the model and brings it back, between steps. Belongs to the engine's thread."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

import msgspec

from luce.errors import LuceError
from luce.protocol import messages as wire
from luce.protocol.paths import text_to_wire
from luce.scheduler.scheduler import Scheduler
from luce.worker.ports import KeptLevel, StepEngine

log = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000
_LEVELS: dict[wire.EvictionLevel, KeptLevel] = {"warm": "warm", "host": "host", "cold": "cold"}


class Residency:
    """Whether the model is there to serve.

    Args:
        engine: holds the memory.
        scheduler: knows what the blocks hold, and copies of it in host memory.
        clock_ns: monotonic nanoseconds.

    Attributes:
        is_evicted: it is not there; nothing may be admitted.
    """

    def __init__(
        self, engine: StepEngine, scheduler: Scheduler, clock_ns: Callable[[], int]
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._clock_ns = clock_ns
        self.is_evicted = False
        self._is_thawed = False
        self._parked_bytes = 0

    def change(self, control: wire.Control, *, is_busy: bool) -> wire.ControlDone:
        """Evict or reinstate; what is so already stays so.

        Args:
            control: what is asked.
            is_busy: requests are held, so the model cannot go.

        Raises:
            Exception: a bug of ours or a broken device; the worker must not go on.
        """
        started_ns = self._clock_ns()
        try:
            if control.op == "reinstate":
                done = self._reinstate(control)
            else:
                done = self._evict(control, is_busy=is_busy)
        except LuceError as error:
            log.warning("residency unchanged", extra={"op": control.op, "error": str(error)})
            done = wire.ControlDone(control.op_id, text_to_wire(str(error)))
        duration_ms = (self._clock_ns() - started_ns) // _NS_PER_MS
        return msgspec.structs.replace(done, duration_ms=duration_ms)

    def _evict(self, control: wire.Control, *, is_busy: bool) -> wire.ControlDone:
        level = _LEVELS.get(control.level or "cold")
        if level is None:
            return wire.ControlDone(control.op_id, "rejected: all of the model is on one device.")
        if is_busy:
            return wire.ControlDone(control.op_id, "rejected: the model holds requests.")
        if level == "cold":
            # What was loaded was taken from the collector's sight, cycles in it too.
            gc.unfreeze()
            self._is_thawed = True
        num_lost = 0

        def save() -> None:
            nonlocal num_lost
            num_lost = 0 if self.is_evicted else self._scheduler.empty_cache()

        kept = self._engine.evict(level, save)
        self.is_evicted = True
        return wire.ControlDone(
            control.op_id,
            retained_bytes=kept.device_bytes,
            host_bytes=kept.host_bytes,
            snapshots_lost=num_lost,
        )

    def _reinstate(self, control: wire.Control) -> wire.ControlDone:
        if self.is_evicted:
            self._parked_bytes = self._engine.reinstate()
            self.is_evicted = False
            # Asking the collector instead would make it count all it has.
            if self._is_thawed:
                gc.freeze()
                self._is_thawed = False
        return wire.ControlDone(control.op_id, host_bytes=self._parked_bytes)
