"""All models with what is under way with each: the coordinator's hands.

Written by the coordinator only; knows no rule and no transition.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from luce.placement.accounts import Accounts
from luce.placement.effects import ResidencyEffects
from luce.placement.residency import (
    Depth,
    Kept,
    ModelRecord,
    Operation,
    Outcome,
    Residency,
)
from luce.placement.situation import ModelFacts, Situation, Traffic


class Fleet:
    """Moves models; each move is booked, begun and published together.

    Attributes:
        records: by name, in order of priority.
    """

    def __init__(
        self,
        records: Sequence[ModelRecord],
        traffic: Traffic,
        effects: ResidencyEffects,
        accounts: Accounts,
        clock_s: Callable[[], float],
    ) -> None:
        self.records = {record.name: record for record in records}
        self._traffic = traffic
        self._effects = effects
        self._accounts = accounts
        self._clock_s = clock_s
        self._operations: dict[str, Operation] = {}
        self._depths: dict[str, Depth] = {}
        self._numbers = itertools.count(1)

    def __getitem__(self, name: str) -> ModelRecord:
        return self.records[name]

    def __iter__(self) -> Iterator[ModelRecord]:
        return iter(self.records.values())

    # --- giving way ------------------------------------------------------------------------

    def leave(self, name: str, depth: Depth, patience_s: float) -> None:
        """From here no new request enters this model; one that is absent keeps less at once."""
        record = self.records[name]
        self._depths[name] = depth
        if record.state is Residency.READY:
            record.move(Residency.DRAINING)
            self._effects.publish()
        elif record.is_absent:
            self.evict(record, patience_s)

    def evict(self, record: ModelRecord, patience_s: float) -> None:
        """It has nothing left to do: let it give its memory back."""
        record.move(Residency.UNLOADING)
        self._accounts.unload(record.name)
        self._start(record.name, self._depths.pop(record.name), patience_s)

    def reopen(self, name: str) -> None:
        """A model that drains serves on."""
        del self._depths[name]
        self.records[name].move(Residency.READY)
        self._effects.publish()

    def not_evicted(self, record: ModelRecord) -> None:
        """It refused, and touched nothing."""
        self._accounts.reopen(record.name)
        if record.kept is None:
            record.move(Residency.READY)
            record.last_use_s = self._clock_s()
        else:
            self._settle(record)

    def keep(self, record: ModelRecord, depth: Depth, outcome: Outcome) -> None:
        """It is not resident any more."""
        record.last_evict_ms = outcome.duration_ms
        record.snapshots_lost += outcome.snapshots_lost
        record.host_bytes = outcome.host_bytes
        record.kept = None
        if outcome.is_gone or depth == "unload":
            record.host_bytes = 0
        else:
            left = {"warm": record.devices, "partial": record.devices[1:]}.get(depth, ())
            record.kept = Kept(depth, left, outcome.retained_bytes)
        self._accounts.keep(record.name, record.kept.nbytes if record.kept else None)
        self._settle(record)

    def _settle(self, record: ModelRecord) -> None:
        """Absent again: back to its cool-down if that is not over."""
        if record.problem and self._clock_s() < record.retry_at_s:
            record.move(Residency.COOLDOWN)
        else:
            record.rest()

    def lost(self, record: ModelRecord) -> None:
        """Its process has ended: it keeps nothing any more."""
        record.kept, record.host_bytes = None, 0
        self._accounts.keep(record.name, None)

    # --- coming in -------------------------------------------------------------------------

    def bring_in(self, record: ModelRecord) -> None:
        """Set its bytes aside and load it."""
        self._accounts.reserve(record.name)
        record.move(Residency.RESERVED)
        record.move(Residency.LOADING)
        self._start(record.name, None, 0.0)

    def came_in(self, record: ModelRecord, outcome: Outcome) -> None:
        """It is resident."""
        record.weight_bytes = outcome.weight_bytes or record.weight_bytes
        record.host_bytes = outcome.host_bytes
        record.charge = outcome.charge
        record.last_reinstate_ms = outcome.duration_ms
        self._accounts.settle(record.name, outcome.charge)
        record.came_in(self._clock_s(), self._traffic.waiting_for(record.name))

    def not_loaded(self, record: ModelRecord, outcome: Outcome) -> None:
        """It holds what it held before, or nothing if its process has ended."""
        self._accounts.cancel(record.name)
        if outcome.is_gone:
            self.lost(record)

    def abandon(self, record: ModelRecord) -> None:
        """Stop a load and end its process."""
        self._effects.abandon(self._operations.pop(record.name))
        self._accounts.cancel(record.name)
        self.lost(record)
        record.rest()

    def started(self, model: str, outcome: Outcome, depth: Depth | None) -> None:
        """How a model stands at the end of the start: resident, or evicted to `depth`."""
        record = self.records[model]
        self._accounts.reserve(model)
        record.move(Residency.RESERVED)
        record.move(Residency.LOADING)
        self.came_in(record, outcome)
        record.last_reinstate_ms = None
        if depth is not None:
            record.move(Residency.DRAINING)
            record.move(Residency.UNLOADING)
            self._accounts.unload(model)
            self.keep(record, depth, outcome)
            record.last_evict_ms = None

    # --- operations ------------------------------------------------------------------------

    def take(self, number: int) -> Operation | None:
        """The operation that has ended; None if it is not under way any more."""
        for operation in self._operations.values():
            if operation.number == number:
                del self._operations[operation.model]
                return operation
        return None

    def _start(self, name: str, depth: Depth | None, patience_s: float) -> None:
        kind = "load" if depth is None else "evict"
        operation = Operation(next(self._numbers), name, kind, depth, patience_s)  # type: ignore[arg-type]
        self._operations[name] = operation
        self._effects.start(operation)

    # --- what can be seen ------------------------------------------------------------------

    def situation(self, arriving: frozenset[str], ahead: Sequence[str] = ()) -> Situation:
        """Everything a rule may look at, as of now."""
        now_s = self._clock_s()
        facts = {record.name: self._facts(record, now_s) for record in self}
        return Situation(facts, arriving, tuple(ahead))

    def available(self) -> dict[str, int | None]:
        """Bytes by device that a model could be given, as of the last look."""
        return {row["device"]: row["avail_bytes"] for row in self._accounts.devices()}

    def _facts(self, record: ModelRecord, now_s: float) -> ModelFacts:
        traffic, name = self._traffic, record.name
        return ModelFacts(
            name=name,
            devices=record.devices,
            state=record.state,
            is_pinned=record.is_pinned,
            kept=record.kept,
            weight_bytes=record.weight_bytes,
            host_bytes=record.host_bytes,
            charge=record.charge,
            cohort=record.cohort,
            in_flight=traffic.in_flight(name),
            waiting=traffic.waiting_for(name),
            oldest_wait_s=traffic.oldest_wait_s(name),
            resident_s=now_s - record.ready_since_s,
            idle_s=now_s - record.last_use_s,
            reload_ms=record.last_reinstate_ms or 0,
            swap_ms=(record.last_reinstate_ms or 0) + (record.last_evict_ms or 0),
        )
