"""FakeResidency: how a FakeSession is evicted and reinstated, as its script says."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from luce.protocol import messages as wire
from luce.testing.fake_script import FakeScript


@dataclass(frozen=True)
class Transition:
    """An evict or a reinstate that was asked for, and the thread that did it."""

    op: wire.ControlOp
    level: wire.EvictionLevel | None
    thread_id: int


class FakeResidency:
    """One transition at a time, at once, after a while, or once it is let go on.

    Attributes:
        is_evicted: nothing can be admitted.
    """

    def __init__(self, script: FakeScript, transitions: list[Transition]) -> None:
        self.is_evicted = False
        self._script = script
        self._transitions = transitions
        self._refusals_left = script.refuse_evict
        self._failures_left = script.fail_reinstate
        self._pending: wire.Control | None = None
        self._due = 0.0
        self._is_held = False
        self._parked_bytes = 0

    @property
    def due(self) -> float | None:
        """Monotonic seconds at which something happens by itself."""
        return None if self._pending is None or self._is_held else self._due

    def begin(self, control: wire.Control) -> None:
        """Start what was asked for."""
        script = self._script
        self._transitions.append(Transition(control.op, control.level, threading.get_ident()))
        self._pending = control
        self._due = time.monotonic() + (
            script.evict_s if control.op == "evict" else script.reinstate_s
        )
        self._is_held = control.op in script.hold_controls

    def release(self) -> None:
        """Let a held transition go on; the next ones do not hold either."""
        self._is_held = False
        self._script.hold_controls.clear()

    def take_done(self, now: float) -> wire.ControlDone | None:
        """The answer, when it is due."""
        control = self._pending
        if control is None or self._is_held or now < self._due:
            return None
        self._pending = None
        if control.op == "evict":
            return self._evicted(control)
        if self._failures_left:
            self._failures_left -= 1
            return wire.ControlDone(control.op_id, self._script.reinstate_error)
        self.is_evicted = False
        return wire.ControlDone(
            control.op_id,
            host_bytes=self._parked_bytes if self._script.keeps_parked else 0,
            duration_ms=round(self._script.reinstate_s * 1000),
        )

    def _evicted(self, control: wire.Control) -> wire.ControlDone:
        if self._refusals_left:
            self._refusals_left -= 1
            return wire.ControlDone(control.op_id, self._script.evict_error)
        self.is_evicted = True
        weights = self._script.weights_bytes
        self._parked_bytes = weights if control.level == "host" else 0
        return wire.ControlDone(
            control.op_id,
            retained_bytes=weights if control.level in ("warm", "partial") else 0,
            host_bytes=self._parked_bytes,
            duration_ms=round(self._script.evict_s * 1000),
            snapshots_lost=self._script.snapshots_lost,
        )
