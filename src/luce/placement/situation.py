"""What a rule of placement sees, and what it can answer: plain data in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from luce.errors import ApiError
from luce.placement.accounts import Accounts
from luce.placement.residency import Depth, Kept, Residency


class Traffic(Protocol):
    """What requests do, read in the moment of a decision; `routing.router.Router` has it."""

    def in_flight(self, name: str) -> int:
        """Reservations of a model: it is idle at 0."""

    def waiting_for(self, name: str) -> int:
        """Requests that only this model may serve and that wait."""

    def oldest_wait_s(self, name: str) -> float:
        """How long the first of them has waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model in the moment of a decision; see `ModelRecord` and `Traffic`."""

    name: str
    devices: tuple[str, ...]
    state: Residency
    is_pinned: bool = False
    kept: Kept | None = None
    weight_bytes: int = 0
    host_bytes: int = 0
    charge: Mapping[str, int] = field(default_factory=dict)
    cohort: int = 0
    in_flight: int = 0
    waiting: int = 0
    oldest_wait_s: float = 0.0
    resident_s: float = 0.0
    idle_s: float = 0.0
    reload_ms: int = 0
    swap_ms: int = 0

    @property
    def is_resident(self) -> bool:
        """It serves, or could go on serving."""
        return self.state in (Residency.READY, Residency.DRAINING)

    @property
    def is_idle(self) -> bool:
        """Nothing runs on it."""
        return self.in_flight == 0

    @property
    def unserved(self) -> int:
        """Of those it came in for, the ones that still wait: departed ones do not count."""
        return min(self.cohort, self.waiting)

    def overlaps(self, other: ModelFacts) -> bool:
        """They share a device."""
        return not set(self.devices).isdisjoint(other.devices)


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything at one moment.

    Attributes:
        models: by name, in order of priority.
        arriving: models that are being brought in, or that something gives way to.
        ahead: models that have waited longer and still wait.
    """

    models: Mapping[str, ModelFacts]
    arriving: frozenset[str] = frozenset()
    ahead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Eviction:
    """A model that gives way, and what it may keep."""

    model: str
    depth: Depth


@dataclass(frozen=True, slots=True)
class Commit:
    """There is room: bring it in.

    Attributes:
        reason: why, for people.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """These must give way first; decide again when they have.

    Attributes:
        evictions: residents, and sleepers that keep too much.
        reason: why, for people.
    """

    evictions: tuple[Eviction, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that is under way may change the answer.

    Attributes:
        reason: what.
        retry_s: nothing but time has to pass: decide again after this long.
    """

    reason: str
    retry_s: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The decision needs to know what is free now.

    Attributes:
        devices: UUIDs to ask about.
    """

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Nothing can change the answer.

    Attributes:
        error: an error for each who waits; made from the numbers of the decision.
        reason: the same in short.
    """

    error: ApiError
    reason: str


Decision = Commit | MakeRoom | Wait | Look | Refuse


class Rule(Protocol):
    """Decides what may be resident; no log, and nothing of what it decided before."""

    @property
    def accounts(self) -> Accounts:
        """The books it decides by."""

    @property
    def terms(self) -> Mapping[str, str | int]:
        """What it was told that others need to know to decide alike; by field of the status."""

    def decide(self, target: str, situation: Situation) -> Decision:
        """What has to happen for `target` to come in."""

    def fallback(
        self, target: str, is_out_of_memory: bool, situation: Situation
    ) -> tuple[Eviction, ...]:
        """What else could give way after a load of `target` failed; empty: nothing."""
