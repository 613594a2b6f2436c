"""Models on their way: making room, loading, and putting things back when that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from luce.errors import SwapDrainTimeout
from luce.placement.arrival import Arrival
from luce.placement.chronicle import Chronicle
from luce.placement.effects import CoordinatorOptions, ResidencyEffects
from luce.placement.fleet import Fleet
from luce.placement.residency import ModelRecord, Operation, Outcome, Residency
from luce.placement.situation import Commit, MakeRoom, Rule, Traffic

DRAIN_WARNING_S = 30.0


class Transitions:
    """The coordinator's second half: it decides nothing but how to go on after a failure.

    Attributes:
        wanted: models to bring in though no request waits for them.
    """

    def __init__(
        self,
        fleet: Fleet,
        rule: Rule,
        traffic: Traffic,
        effects: ResidencyEffects,
        options: CoordinatorOptions,
        clock_s: Callable[[], float],
    ) -> None:
        self.wanted: set[str] = set()
        self.chronicle = Chronicle(fleet, clock_s)
        self._fleet = fleet
        self._rule = rule
        self._traffic = traffic
        self._effects = effects
        self._options = options
        self._clock_s = clock_s
        self._arrivals: dict[str, Arrival] = {}

    def __contains__(self, model: object) -> bool:
        return model in self._arrivals

    def __iter__(self) -> Iterator[Arrival]:
        return iter(list(self._arrivals.values()))

    @property
    def targets(self) -> frozenset[str]:
        """Models that are being brought in, or that something gives way to."""
        return frozenset(self._arrivals)

    def get(self, model: str) -> Arrival | None:
        """The transition of a model."""
        return self._arrivals.get(model)

    def is_wanted(self, name: str) -> bool:
        """Somebody waits for it to come in."""
        return name in self.wanted or self._traffic.waiting_for(name) > 0

    # --- forwards --------------------------------------------------------------------------

    def carry_out(self, name: str, decision: Commit | MakeRoom) -> None:
        """Do what was decided for a model that is not resident."""
        now_s = self._clock_s()
        arrival = self._arrivals.setdefault(name, Arrival(target=name, began_s=now_s))
        if isinstance(decision, MakeRoom):
            self._make_room(arrival, decision)
            return
        self.chronicle.note(name, "load", decision.reason)
        if arrival.drained_s is None:
            arrival.drained_s = now_s
        self._fleet.bring_in(self._fleet[name])

    def _make_room(self, arrival: Arrival, decision: MakeRoom) -> None:
        victims = {eviction.model: eviction.depth for eviction in decision.evictions}
        self.chronicle.note(arrival.target, "make_room", decision.reason, victims)
        arrival.make_room(decision.evictions, decision.reason)
        for name, depth in victims.items():
            self._fleet.leave(name, depth, self._options.memory_patience_s)

    def watch(self, arrival: Arrival, now_s: float) -> None:
        """A transition waits: long enough to give it up?"""
        draining = [name for name in arrival.leaving if self._is_draining(name)]
        if not draining:
            return
        waited_s = now_s - arrival.began_s
        if self._options.abandons and not self.is_wanted(arrival.target):
            self._give_up(arrival, "nobody waits for it any more")
        elif 0 < self._options.drain_timeout_s <= waited_s:
            names = ", ".join(draining)
            text = f"Model {arrival.target} could not come in: {names} still works. Try again."
            self._give_up(arrival, f"{names} did not finish within {waited_s:.0f} s")
            self._effects.refuse(arrival.target, lambda: SwapDrainTimeout(text))
        elif now_s - max(arrival.began_s, arrival.warned_s) >= DRAIN_WARNING_S:
            arrival.warned_s = now_s
            for name in draining:
                in_flight = self._traffic.in_flight(name)
                self.chronicle.drains(arrival, name, in_flight, waited_s)

    # --- backwards -------------------------------------------------------------------------

    def end(self, target: str) -> None:
        """Nothing more gives way to this model."""
        arrival = self._arrivals.pop(target, None)
        if arrival is not None:
            self._reopen(arrival)

    def cancel(self, model: str) -> None:
        """A model is to come in no more, neither because it was wanted nor back from a failure."""
        self.wanted.discard(model)
        for arrival in self:
            arrival.restoring.discard(model)
            arrival.displaced.pop(model, None)
        own = self._arrivals.get(model)
        if own is not None:
            own.problem = own.problem or "it was unloaded"

    def restore(self, arrival: Arrival, *, is_open: bool) -> None:
        """Reopen who still drains and bring back who has gone."""
        self._reopen(arrival)
        for name in [name for name in arrival.displaced if name not in arrival.leaving]:
            del arrival.displaced[name]
            record = self._fleet[name]
            may_return = record.is_absent and record.state is not Residency.COOLDOWN
            if may_return and self._options.restores and is_open:
                arrival.restoring.add(name)
                self._fleet.bring_in(record)
        if arrival.is_over:
            del self._arrivals[arrival.target]

    def _give_up(self, arrival: Arrival, reason: str) -> None:
        """Put things back; the target is not to blame."""
        self.chronicle.note(arrival.target, "given_up", reason)
        arrival.problem = reason
        self._fleet[arrival.target].rest()

    def _fail(self, arrival: Arrival, problem: str) -> None:
        """The target does not come in, and is not tried again for a while."""
        arrival.problem = problem
        self.wanted.discard(arrival.target)
        self._cool_down(self._fleet[arrival.target], problem)

    def turn_away(self, record: ModelRecord, problem: str) -> None:
        """It cannot come in, and nobody has given way yet; not tried again for a while."""
        self.wanted.discard(record.name)
        self._cool_down(record, problem)

    def _cool_down(self, record: ModelRecord, problem: str) -> None:
        self.chronicle.failed(record.name, problem)
        record.fail(problem, self._clock_s(), self._options.cooldown)

    def _reopen(self, arrival: Arrival) -> None:
        for name in [name for name in arrival.leaving if self._is_draining(name)]:
            del arrival.leaving[name]
            self._fleet.reopen(name)

    def _is_draining(self, name: str) -> bool:
        return self._fleet[name].state is Residency.DRAINING

    # --- answers ---------------------------------------------------------------------------

    def evicted(self, operation: Operation, outcome: Outcome) -> None:
        """An eviction ended."""
        record = self._fleet[operation.model]
        was_resident = record.kept is None
        if outcome.error:
            self._fleet.not_evicted(record)
        else:
            self._fleet.keep(record, operation.depth or "cold", outcome)
        arrival = next((a for a in self if record.name in a.leaving), None)
        if arrival is None:
            return
        depth = arrival.leaving.pop(record.name)
        arrival.evict_ms = max(arrival.evict_ms, outcome.duration_ms)
        if outcome.error:
            if not arrival.has_failed:
                self._fail(arrival, f"model {record.name} did not give way: {outcome.error}")
        elif was_resident:
            record.last_reason = f"gave way to {arrival.target}"
            arrival.displaced[record.name] = depth
        else:
            arrival.dropped[record.name] = depth

    def loaded(self, operation: Operation, outcome: Outcome) -> None:
        """A load ended."""
        record = self._fleet[operation.model]
        restored = [arrival for arrival in self if record.name in arrival.restoring]
        for arrival in restored:
            arrival.restoring.discard(record.name)
        if outcome.error:
            self._fleet.not_loaded(record, outcome)
            if restored:
                self._cool_down(record, outcome.error)
            else:
                self._not_loaded(self._arrivals[record.name], outcome)
            return
        self._fleet.came_in(record, outcome)
        self.wanted.discard(record.name)
        if restored:
            record.last_reason = f"came back: {restored[0].target} did not come in"
        else:
            arrival = self._arrivals.pop(record.name)
            record.num_loads += 1
            record.last_reason = arrival.reason or "requested"
            self.chronicle.came_in(arrival, record)
        # Those it came in for are attached before anything else is decided.
        self._effects.publish()

    def _not_loaded(self, arrival: Arrival, outcome: Outcome) -> None:
        """Once, whatever else can go goes, and the target is tried again."""
        situation = self._fleet.situation(self.targets)
        others = self._rule.fallback(arrival.target, outcome.is_out_of_memory, situation)
        if not others or arrival.has_fallen_back:
            self._fail(arrival, outcome.error)
            return
        arrival.has_fallen_back = True
        self._fleet[arrival.target].move(Residency.QUEUED)
        reason = f"the load failed beside what others keep: {outcome.error}"
        self._make_room(arrival, MakeRoom(others, reason))
