"""The rule of bytes: models are resident together as far as their devices hold them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from luce.placement.decision import AdmissionPolicy, Candidate, Room, decide
from luce.placement.ledger import Ledger
from luce.placement.residency import Residency
from luce.placement.samples import Samples
from luce.placement.situation import Decision, Eviction, Look, ModelFacts, Situation, Wait
from luce.placement.victims import Victim, choose

SAMPLE_AGE_S = 0.05
"""A sample older than this is taken again before anything is decided on it."""
LAST_RESORT_AGE_S = 1.0
"""When a driver does not answer, its last answer counts if it is younger than this."""
SLACK = (11, 10)
"""A load that ran out of memory is planned with so much more the next time..."""
MAX_SLACKS = 2
"""...this many times."""

_COUNTED = (
    Residency.RESERVED,
    Residency.LOADING,
    Residency.READY,
    Residency.DRAINING,
    Residency.UNLOADING,
)
_MOVING = (Residency.RESERVED, Residency.LOADING, Residency.DRAINING, Residency.UNLOADING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteOptions:
    """What was asked for.

    Attributes:
        policy: gate or proceed.
        models_max: most models resident at a time; 0 = any number.
        exclusive: models of which nobody knows what they take.
    """

    policy: AdmissionPolicy = "gate"
    models_max: int = 0
    exclusive: frozenset[str] = frozenset()


class ByteRoom:
    """A `Rule` over the books of a `Ledger`.

    Attributes:
        accounts: that ledger.
    """

    def __init__(self, ledger: Ledger, samples: Samples, options: ByteOptions) -> None:
        self.accounts = self._ledger = ledger
        self._samples = samples
        self._options = options
        self._num_slacks: dict[str, int] = {}

    @property
    def terms(self) -> Mapping[str, str | int]:
        """See `Rule.terms`."""
        options = self._options
        return {"admission_policy": options.policy, "models_max": options.models_max}

    def decide(self, target: str, situation: Situation) -> Decision:
        """See `decision.decide`; whoever waits longer keeps its pools from those behind."""
        plan = self._ledger.plan_of(target)
        first = self._ahead_of(target, situation)
        if first is not None:
            return Wait(f"{first} waits longer for the same memory")
        stale = self._stale_devices(plan)
        if stale:
            return Look(stale)
        candidate = Candidate(
            target, plan, self._ledger.needed_by(target), target in self._options.exclusive
        )
        return decide(candidate, self._room(target, situation))

    def fallback(
        self, target: str, is_out_of_memory: bool, situation: Situation
    ) -> tuple[Eviction, ...]:
        """After running out of memory: plan for more, and once send away who is idle there."""
        if not is_out_of_memory:
            return ()
        plan = self._ledger.plan_of(target)
        if self._num_slacks.get(target, 0) < MAX_SLACKS:
            self._num_slacks[target] = self._num_slacks.get(target, 0) + 1
            more, of = SLACK
            self._ledger.replan(target, {pool: n * more // of for pool, n in plan.items()})
        if self._options.policy != "gate":
            return ()
        victims = [v for v in self._victims(target, situation) if v.is_idle and v.is_resident]
        for pool in plan:
            chosen = choose(victims, {pool: 1}, 0)
            if chosen is not None:
                return tuple(Eviction(victim.name, "cold") for victim in chosen)
        return ()

    def _ahead_of(self, target: str, situation: Situation) -> str | None:
        pools = set(self._ledger.plan_of(target))
        for name in situation.ahead:
            shares = self._options.models_max or not pools.isdisjoint(self._ledger.plan_of(name))
            if name != target and shares:
                return name
        return None

    def _stale_devices(self, pools: Collection[str]) -> tuple[str, ...]:
        return tuple(
            device
            for pool in pools
            for device in self._ledger.pools[pool].devices
            if not self._samples.is_fresh(device, SAMPLE_AGE_S)
        )

    def _room(self, target: str, situation: Situation) -> Room:
        others = [m for m in situation.models.values() if m.name != target]
        moving = [m for m in others if m.state in _MOVING]
        return Room(
            pools={
                pool: self._ledger.state(pool, LAST_RESORT_AGE_S)
                for pool in self._ledger.plan_of(target)
            },
            victims=self._victims(target, situation),
            moving=frozenset(pool for m in moving for pool in self._ledger.plan_of(m.name)),
            num_resident=sum(model.state in _COUNTED for model in others),
            models_max=self._options.models_max,
            policy=self._options.policy,
        )

    def _victims(self, target: str, situation: Situation) -> list[Victim]:
        return [
            self._victim(model)
            for model in situation.models.values()
            if model.name != target and not model.is_pinned and _may_go(model)
        ]

    def _victim(self, model: ModelFacts) -> Victim:
        is_resident = model.state is Residency.READY
        return Victim(
            name=model.name,
            frees=self._ledger.held_by(model.name),
            idle_s=model.idle_s,
            is_resident=is_resident,
            is_idle=model.is_idle and model.waiting == 0 and model.unserved == 0,
            is_owed=model.unserved > 0,
            reload_ms=model.reload_ms,
        )


def _may_go(model: ModelFacts) -> bool:
    """Never one that loads; a sleeper only if nobody is about to wake it."""
    if model.state is Residency.READY:
        return True
    return model.state is Residency.SLEEPING and model.waiting == 0
