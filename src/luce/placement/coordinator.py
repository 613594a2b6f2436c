"""The owner of residency: which models are on their devices, and who comes in next.

Lives on the event loop; no locks. Each public method is one event and runs to its end without an
await, so nothing is decided on state that somebody else changed meanwhile. What has to happen
outside is asked for through `ResidencyEffects` and comes back as another event. What a request
does is read from the router in the moment of the decision.

A model comes in in one way, whatever the rule: those that must give way admit nothing more,
finish what runs, give their memory back; then its bytes are set aside, and it loads. If it does
not come in, who was displaced comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luce.errors import ApiError
from luce.placement.accounts import NoAccounts
from luce.placement.effects import CoordinatorOptions, ResidencyEffects
from luce.placement.fleet import Fleet
from luce.placement.residency import Depth, ModelRecord, Outcome, Residency
from luce.placement.situation import Look, MakeRoom, Refuse, Rule, Traffic, Wait
from luce.placement.transitions import Transitions

CHECK_HOLDS_S = 1.0
"""Files that were as planned count as such for so long."""


class Coordinator:
    """Decides for all models of a server.

    Attributes:
        fleet: the models; read by whoever wants to know.
        chronicle: what happened so far.
    """

    def __init__(
        self,
        records: Sequence[ModelRecord],
        rule: Rule,
        traffic: Traffic,
        effects: ResidencyEffects,
        options: CoordinatorOptions | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is decided before `open`.

        Args:
            records: the models, by priority.
            rule: what may be resident.
            traffic: what requests do.
            effects: how things get done.
            options: see `CoordinatorOptions`.
            clock_s: monotonic seconds.
        """
        self._accounts = rule.accounts
        self._options = options or CoordinatorOptions()
        self.fleet = Fleet(records, traffic, effects, self._accounts, clock_s)
        self._transitions = Transitions(self.fleet, rule, traffic, effects, self._options, clock_s)
        self.chronicle = self._transitions.chronicle
        self._rule = rule
        self._traffic = traffic
        self._effects = effects
        self._clock_s = clock_s
        self._is_open = False
        self._is_advancing = False
        self._must_advance = False

    # --- what can be seen ------------------------------------------------------------------

    @property
    def arriving(self) -> frozenset[str]:
        """Models that are being brought in, or that something gives way to."""
        return self._transitions.targets

    @property
    def has_books(self) -> bool:
        """Bytes decide, not device sets."""
        return not isinstance(self._accounts, NoAccounts)

    def devices(self) -> Sequence[Mapping[str, Any]]:
        """Memory of each device as of the last look, where bytes decide."""
        return self._accounts.devices()

    @property
    def terms(self) -> Mapping[str, str | int]:
        """See `Rule.terms`."""
        return self._rule.terms

    def may_drive(self, model: str) -> bool:
        """A request that waits for this model now would have it brought in at once."""
        record = self.fleet[model]
        if not self._is_open or not record.is_absent or record.state is Residency.COOLDOWN:
            return False
        if model in self._transitions or any(self._traffic.waiting_for(r.name) for r in self.fleet):
            return False
        decision = self._rule.decide(model, self.fleet.situation(self.arriving))
        if isinstance(decision, Wait):
            return decision.retry_s is not None
        return not isinstance(decision, Refuse)

    # --- what happens ----------------------------------------------------------------------

    def started(self, model: str, outcome: Outcome, depth: Depth | None = None) -> None:
        """How a model stands at the end of the start: resident, or evicted to `depth`."""
        self.fleet.started(model, outcome, depth)

    def open(self) -> None:
        """The start is over: decide from now on."""
        self._is_open = True
        self.advance()

    def shut_down(self) -> None:
        """Begin nothing more."""
        self._is_open = False

    def want(self, model: str) -> None:
        """Bring this model in though no request waits for it."""
        if self.fleet[model].is_absent:
            self._transitions.wanted.add(model)
        self.advance()

    def admitted(self, model: str) -> None:
        """A worker took a request: one fewer of those the model came in for."""
        record = self.fleet[model]
        record.cohort = max(0, record.cohort - 1)
        record.last_use_s = self._clock_s()

    def lost(self, model: str) -> None:
        """The process of a model that is not resident has ended."""
        record = self.fleet[model]
        if record.is_absent and record.kept is not None:
            self.fleet.lost(record)
            if record.state is Residency.SLEEPING:
                record.rest()
        self.advance()

    def checked(self, model: str, problem: str) -> None:
        """Whether a model could load from its files, said after `ResidencyEffects.check`.

        Args:
            model: which.
            problem: why it could not; empty: it could.
        """
        record = self.fleet[model]
        if not problem:
            record.checked_s = self._clock_s()
        elif record.state is Residency.QUEUED and model not in self._transitions:
            self._transitions.turn_away(record, problem)
        self.advance()

    def unload(self, model: str, error: Callable[[], ApiError]) -> None:
        """Take a model out until it is asked for again, and its process with it.

        A load is cancelled, and who gave way to it comes back; a resident finishes what runs.

        Args:
            model: which.
            error: what those who wait for it are told.
        """
        record = self.fleet[model]
        self._transitions.cancel(model)
        if record.state is Residency.LOADING:
            self.fleet.abandon(record)
        elif record.state is Residency.QUEUED:
            record.rest()
        elif record.state in (Residency.READY, Residency.SLEEPING):
            record.last_reason = "unloaded"
            self.fleet.leave(model, "unload", self._options.memory_patience_s)
        self._effects.publish()
        self._effects.refuse(model, error)
        self.advance()

    def finished(self, number: int, outcome: Outcome) -> None:
        """An operation ended; said twice, or about one that was abandoned, it means nothing."""
        operation = self.fleet.take(number)
        if operation is None:
            return
        if operation.kind == "evict":
            self._transitions.evicted(operation, outcome)
        else:
            self._transitions.loaded(operation, outcome)
        self.advance()

    def advance(self) -> None:
        """Time has passed, or requests came, went or ended: do whatever can be done now."""
        self._must_advance = True
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._must_advance:
                self._must_advance = False
                self._step()
        finally:
            self._is_advancing = False

    # --- one step --------------------------------------------------------------------------

    def _step(self) -> None:
        now_s = self._clock_s()
        for record in self.fleet:
            self._look_at(record, now_s)
        for arrival in self._transitions:
            if not arrival.has_failed:
                self._transitions.watch(arrival, now_s)
            if arrival.has_failed:
                self._transitions.restore(arrival, is_open=self._is_open)
        if self._is_open:
            self._consider_all()
        self._effects.publish()

    def _look_at(self, record: ModelRecord, now_s: float) -> None:
        is_idle = not self._traffic.in_flight(record.name)
        if not is_idle:
            record.last_use_s = now_s
        if record.state is Residency.COOLDOWN and now_s >= record.retry_at_s:
            record.rest()
        elif record.state is Residency.DRAINING and is_idle:
            self.fleet.evict(record, self._options.memory_patience_s)
        elif record.state is Residency.READY and self._is_left_alone(record, now_s):
            self.fleet.leave(record.name, "cold", self._options.memory_patience_s)
            record.last_reason = "idle"
            self._must_advance = True

    def _is_left_alone(self, record: ModelRecord, now_s: float) -> bool:
        patience_s = self._options.idle_unload_s
        if not (patience_s and self._is_open) or record.is_pinned:
            return False
        is_waited_for = self._traffic.waiting_for(record.name) > 0
        return not is_waited_for and now_s - record.last_use_s >= patience_s

    def is_wanted(self, name: str) -> bool:
        """Somebody waits for it to come in."""
        return self._transitions.is_wanted(name)

    def _demand(self) -> list[str]:
        """Models that are wanted and not on their way: first those room was made for, then by
        how long somebody has waited."""
        names = []
        for record in self.fleet:
            name, arrival = record.name, self._transitions.get(record.name)
            if not record.is_absent or record.state is Residency.COOLDOWN:
                continue
            if arrival is not None:
                if not (arrival.leaving or arrival.has_failed):
                    names.append(name)
            elif self.is_wanted(name):
                names.append(name)
            elif record.state is Residency.QUEUED:
                record.rest()
        waited_s = self._traffic.oldest_wait_s
        return sorted(names, key=lambda name: (name not in self._transitions, -waited_s(name)))

    def _consider_all(self) -> None:
        """First come, first served: who waits for room keeps it from those behind."""
        ahead = [arrival.target for arrival in self._transitions if arrival.leaving]
        for name in self._demand():
            if not self.fleet[name].is_absent:
                continue  # It has just been told to give way to one before it.
            self._consider(name, ahead)
            if self.fleet[name].is_absent and self.is_wanted(name):
                ahead.append(name)

    def _consider(self, name: str, ahead: Sequence[str]) -> None:
        """Let the rule decide about a model that is not resident, and do what it says."""
        record = self.fleet[name]
        decision = self._rule.decide(name, self.fleet.situation(self.arriving, ahead))
        if isinstance(decision, Look):
            self._effects.probe(decision.devices)
            return
        if record.state is not Residency.QUEUED:
            record.move(Residency.QUEUED)
        if isinstance(decision, Wait):
            self.chronicle.note(name, "wait", decision.reason)
            if decision.retry_s is not None:
                self._effects.wake(decision.retry_s)
        elif isinstance(decision, Refuse):
            self._refuse(name, decision)
        elif isinstance(decision, MakeRoom) and self._must_check(record):
            self._effects.check(name)
        else:
            self._transitions.carry_out(name, decision)
            self._must_advance = True

    def _must_check(self, record: ModelRecord) -> bool:
        """Nobody gives way for a model whose files are not those that were planned."""
        if record.name in self._transitions or not record.must_read:
            return False
        return record.checked_s is None or self._clock_s() - record.checked_s > CHECK_HOLDS_S

    def _refuse(self, name: str, decision: Refuse) -> None:
        self.chronicle.note(name, "refuse", decision.reason)
        self._transitions.wanted.discard(name)
        self._transitions.end(name)
        self.fleet[name].rest()
        error = decision.error
        self._effects.refuse(name, lambda: _copy(error))


def _copy(error: ApiError) -> ApiError:
    """One error a request: a shared instance would collect the tracebacks of all."""
    return type(error)(error.message, param=error.param, retry_after_s=error.retry_after_s)
