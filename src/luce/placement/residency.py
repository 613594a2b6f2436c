"""Where one model is between its files and a device, and what is known of its way there."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal


class Residency(enum.Enum):
    """States of a model; `_MOVES` has the legal ways between them."""

    UNLOADED = "unloaded"
    """No process, or one that holds nothing."""
    SLEEPING = "sleeping"
    """Evicted: its process keeps something, at least a runtime context."""
    QUEUED = "queued"
    """Somebody wants it, and there is no room yet."""
    RESERVED = "reserved"
    """Its bytes are set aside; its load is about to begin."""
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    """Admits nothing more and gives way once it has nothing left to do."""
    UNLOADING = "unloading"
    COOLDOWN = "cooldown"
    """It failed, and is not tried again for a while."""


Depth = Literal["cold", "host", "warm", "partial", "unload"]
"""How much of a model goes: what an eviction keeps (see `EvictionLevel`), or nothing, not even the
process."""

_ABSENT = frozenset({Residency.UNLOADED, Residency.SLEEPING})
_MOVES: dict[Residency, frozenset[Residency]] = {
    Residency.UNLOADED: frozenset({Residency.QUEUED, Residency.RESERVED, Residency.UNLOADING}),
    Residency.SLEEPING: frozenset(
        {Residency.QUEUED, Residency.RESERVED, Residency.UNLOADING, Residency.UNLOADED}
    ),
    Residency.QUEUED: _ABSENT | {Residency.RESERVED, Residency.UNLOADING, Residency.COOLDOWN},
    Residency.RESERVED: _ABSENT | {Residency.LOADING, Residency.COOLDOWN},
    Residency.LOADING: _ABSENT | {Residency.READY, Residency.COOLDOWN, Residency.QUEUED},
    Residency.READY: frozenset({Residency.DRAINING}),
    Residency.DRAINING: frozenset({Residency.READY, Residency.UNLOADING}),
    Residency.UNLOADING: _ABSENT | {Residency.READY, Residency.COOLDOWN},
    Residency.COOLDOWN: _ABSENT | {Residency.QUEUED, Residency.UNLOADING},
}


class IllegalMove(RuntimeError):
    """A bug of ours: a model cannot go that way."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What an evicted model still holds.

    Attributes:
        level: the eviction that left it.
        devices: where.
        nbytes: on devices.
    """

    level: Depth = "cold"
    devices: tuple[str, ...] = ()
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Cooldown:
    """How long a model that failed is left alone.

    Attributes:
        first_s: after the first failure.
        max_s: doubling ends here.
    """

    first_s: float = 30.0
    max_s: float = 30.0

    def pause_s(self, num_failures: int) -> float:
        """The pause after so many failures in a row."""
        return min(self.max_s, self.first_s * 2.0 ** (num_failures - 1))


@dataclass(slots=True, kw_only=True)
class ModelRecord:
    """One model; written by the coordinator only. Times are on its clock, in seconds.

    Attributes:
        devices: everything it computes on, the device of its layers first.
        state: where it is.
        is_pinned: never gives way.
        kept: what it holds while it is not resident; None: nothing, and it has no process.
        weight_bytes: its parameters on devices, as it said itself; 0 until then.
        host_bytes: its parameters in host memory.
        plan: bytes it was planned to take, by place and part; empty: nobody knows.
        charge: bytes on each device that count as its own while it is resident.
        cohort: of those who waited when it came in, the ones not served yet.
        problem: why it failed last; empty after a success.
        num_failures: in a row.
        retry_at_s: end of its cool-down.
        checked_s: when its files were last seen to be those that were planned; None: never.
        last_problem: like `problem`, and kept.
        ready_since_s: when it became resident.
        last_use_s: when it last had something to do.
        num_loads: times it came in after the start.
        last_evict_ms: how long the last eviction took; None: there was none.
        last_reinstate_ms: how long coming in took.
        last_reason: why the last transition happened.
        snapshots_lost: prefixes that evictions could not keep.
    """

    name: str
    devices: tuple[str, ...]
    state: Residency = Residency.UNLOADED
    is_pinned: bool = False
    kept: Kept | None = None
    weight_bytes: int = 0
    host_bytes: int = 0
    plan: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    charge: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    cohort: int = 0
    problem: str = ""
    num_failures: int = 0
    retry_at_s: float = 0.0
    checked_s: float | None = None
    last_problem: str = ""
    ready_since_s: float = 0.0
    last_use_s: float = 0.0
    num_loads: int = 0
    last_evict_ms: int | None = None
    last_reinstate_ms: int | None = None
    last_reason: str = ""
    snapshots_lost: int = 0

    @property
    def is_resident(self) -> bool:
        """It serves, or could go on serving."""
        return self.state in (Residency.READY, Residency.DRAINING)

    @property
    def is_absent(self) -> bool:
        """Nothing is under way with it, and it does not serve."""
        return self.state in (
            Residency.UNLOADED,
            Residency.SLEEPING,
            Residency.QUEUED,
            Residency.COOLDOWN,
        )

    @property
    def must_read(self) -> bool:
        """It comes in from its files: no memory holds its weights."""
        if self.kept is None or self.kept.level == "host":
            return not self.host_bytes
        return self.kept.level == "cold"

    def move(self, state: Residency) -> None:
        """Go to another state.

        Raises:
            IllegalMove: there is no such way.
        """
        if state not in _MOVES[self.state]:
            raise IllegalMove(f"model {self.name}: {self.state.value} to {state.value}")
        self.state = state

    def rest(self) -> None:
        """Not resident and not wanted: asleep if it keeps something, else unloaded."""
        state = Residency.UNLOADED if self.kept is None else Residency.SLEEPING
        if self.state is not state:
            self.move(state)

    def fail(self, problem: str, now_s: float, cooldown: Cooldown) -> None:
        """It could not come in."""
        self.move(Residency.COOLDOWN)
        self.num_failures += 1
        self.problem = self.last_problem = problem
        self.retry_at_s = now_s + cooldown.pause_s(self.num_failures)

    def came_in(self, now_s: float, waiting: int) -> None:
        """It is resident now.

        Args:
            now_s: when.
            waiting: those who wait for it; they are served before it goes again.
        """
        self.move(Residency.READY)
        self.kept = None
        self.cohort = waiting
        self.problem, self.num_failures = "", 0
        self.ready_since_s = self.last_use_s = now_s


OperationKind = Literal["load", "evict"]


@dataclass(frozen=True, slots=True)
class Operation:
    """Something a worker is asked to do; answered by one `Outcome`.

    Attributes:
        number: unique; an answer that bears another is late and means nothing.
        depth: what an eviction keeps; None for a load.
        patience_s: how long memory may take to come back after an eviction.
    """

    number: int
    model: str
    kind: OperationKind
    depth: Depth | None = None
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an operation ended.

    Attributes:
        error: why it did not do it: an eviction then touched nothing, a load left nothing.
        is_out_of_memory: that is because the device was full.
        is_gone: there is no process any more.
        retained_bytes: what an evicted model holds on devices.
        host_bytes: its weights in host memory.
        weight_bytes: of a model that came in: its parameters.
        charge: of a model that came in: what it takes on each device; empty: as planned.
        duration_ms: how long it took.
        snapshots_lost: prefixes an eviction could not keep.
    """

    error: str = ""
    is_out_of_memory: bool = False
    is_gone: bool = False
    retained_bytes: int = 0
    host_bytes: int = 0
    weight_bytes: int = 0
    charge: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    duration_ms: int = 0
    snapshots_lost: int = 0
