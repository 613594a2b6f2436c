"""The rule of taking turns: models that share a device are never resident together.

By device sets alone; bytes are found out by the load itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from luce.placement.accounts import NoAccounts
from luce.placement.residency import Depth, Residency
from luce.placement.situation import (
    Commit,
    Decision,
    Eviction,
    MakeRoom,
    ModelFacts,
    Situation,
    Wait,
)

_MS_PER_S = 1000
_GOING = (Residency.DRAINING, Residency.UNLOADING)
"""Of its own accord, if it does not give way to anybody."""

LINGER_S = 0.03
"""A model that has just finished is given this long to be asked again: a client that sends one
request after the other would otherwise pay for two swaps with each."""

LINGER_BOUND_S = 1.0
"""Whoever has waited this long does not wait for that."""

TURN_FACTOR = 2
"""Unless somebody says otherwise, a model with work stays so many times as long as its swap took:
then less than half of the time goes into swaps..."""
LONGEST_TURN_S = 5.0
"""...but not longer than this..."""
SHORTEST_TURN_S = 0.2
"""...nor shorter: where weights stay in host memory a swap takes milliseconds, but what runs behind
it finds cold caches and batches that fell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """What was asked for.

    Attributes:
        kept_weights: models whose weights may stay on their device.
        host_bytes: host memory for weights of all models together.
        min_residency_s: a model that came in stays this long, unless idle and not waited for;
            None = by what its swap took.
        max_wait_s: who has waited longer overrides that; 0 = nobody.
        linger_s: see `LINGER_S`.
    """

    kept_weights: tuple[str, ...] = ()
    host_bytes: int = 0
    min_residency_s: float | None = 0.0
    max_wait_s: float = 0.0
    linger_s: float = LINGER_S


class DeviceTurns:
    """A `Rule`: one transition at a time, cohort after cohort.

    Attributes:
        accounts: none: bytes are found out by the load itself.
    """

    def __init__(self, options: TurnOptions) -> None:
        self._options = options
        self.accounts = NoAccounts()

    @property
    def terms(self) -> Mapping[str, str | int]:
        """See `Rule.terms`."""
        return {}

    def decide(self, target: str, situation: Situation) -> Decision:
        """Name everything that must give way, or why that must wait."""
        under_way = situation.arriving - {target}
        if under_way:
            return Wait(f"a swap to {', '.join(sorted(under_way))} is under way")
        incoming = situation.models[target]
        others = [m for m in situation.models.values() if m.name != target]
        going = [m.name for m in others if m.state in _GOING and m.overlaps(incoming)]
        if going:
            return Wait(f"{', '.join(going)} is being unloaded")
        conflicts = [m for m in others if m.is_resident and m.overlaps(incoming)]
        for model in conflicts:
            wait = self._stays(model, incoming)
            if wait is not None:
                return wait
        evictions = [
            *self._evictions(conflicts, incoming, situation.models),
            *(Eviction(m.name, "cold") for m in others if _harms(m, incoming)),
        ]
        if not evictions:
            return Commit("nobody is in the way")
        return MakeRoom(tuple(evictions), f"{target} shares devices with them")

    def fallback(
        self, target: str, is_out_of_memory: bool, situation: Situation
    ) -> tuple[Eviction, ...]:
        """Every other model that is not resident and keeps memory on the target's devices.

        Weights there, and whatever does not go together with the target, are given up altogether.
        Where only memory lacks, weights in host memory stay: asked for them once more, a worker
        gives up what else it keeps on its device (captured steps).
        """
        incoming = situation.models[target]
        others = [model for model in situation.models.values() if model.name != target]
        dropped = [Eviction(m.name, "cold") for m in others if _keeps_on(m, incoming)]
        if is_out_of_memory:
            dropped += [Eviction(m.name, "host") for m in others if _keeps_steps_on(m, incoming)]
        return tuple(dropped)

    def _stays(self, model: ModelFacts, incoming: ModelFacts) -> Wait | None:
        """Why a resident may not be sent away yet; None: it may."""
        if model.unserved > 0:
            return Wait(f"{model.name} has not served those it came in for")
        options, waited_s = self._options, incoming.oldest_wait_s
        has_work = not model.is_idle or model.waiting > 0
        linger_s = options.linger_s - model.idle_s
        left_s = self._turn_s(model) - model.resident_s
        is_overdue = 0 < options.max_wait_s <= waited_s
        if (has_work or linger_s > 0) and left_s > 0 and not is_overdue:
            pause_s = left_s if has_work else min(left_s, linger_s)
            return Wait(f"{model.name} has only just come in", retry_s=pause_s)
        if not has_work and linger_s > 0 and waited_s < LINGER_BOUND_S:
            return Wait(f"{model.name} has only just finished", retry_s=linger_s)
        return None

    def _turn_s(self, model: ModelFacts) -> float:
        """How long it stays once it came in, as long as it has work."""
        if self._options.min_residency_s is not None:
            return self._options.min_residency_s
        by_swap_s = TURN_FACTOR * model.swap_ms / _MS_PER_S
        return min(LONGEST_TURN_S, max(SHORTEST_TURN_S, by_swap_s))

    def _evictions(
        self,
        leaving: Sequence[ModelFacts],
        incoming: ModelFacts,
        models: Mapping[str, ModelFacts],
    ) -> Iterable[Eviction]:
        left = self._options.host_bytes - sum(model.host_bytes for model in models.values())
        for model in leaving:
            depth = self._depth(model, incoming, left)
            if depth == "host":
                left -= max(0, model.weight_bytes - model.host_bytes)
            yield Eviction(model.name, depth)

    def _depth(self, model: ModelFacts, incoming: ModelFacts, left_bytes: int) -> Depth:
        secondary = set(model.devices[1:])
        if secondary and secondary.isdisjoint(incoming.devices):
            return "partial"
        is_single = len(model.devices) == 1 and len(incoming.devices) == 1
        if is_single and model.name in self._options.kept_weights:
            return "warm"
        is_parkable = 0 < model.weight_bytes <= left_bytes + model.host_bytes
        return "host" if is_parkable else "cold"

    def parked_depth(self, weight_bytes: int, taken_bytes: int) -> Depth:
        """What a model that leaves at the start keeps: its weights, if host memory has room.

        Args:
            weight_bytes: of the model.
            taken_bytes: host memory that holds weights of others.
        """
        is_parkable = 0 < weight_bytes <= self._options.host_bytes - taken_bytes
        return "host" if is_parkable else "cold"


def first_residents(devices: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Which models are resident after the start: the first, and each that shares no device.

    Args:
        devices: of each model, in order of priority.
    """
    taken: set[str] = set()
    names = []
    for name, used in devices.items():
        if taken.isdisjoint(used):
            taken.update(used)
            names.append(name)
    return tuple(names)


def _keeps_on(model: ModelFacts, incoming: ModelFacts) -> bool:
    """It is not resident and holds more than a context on a device of the incoming one."""
    if model.is_resident or model.kept is None or model.kept.level not in ("warm", "partial"):
        return False
    return not set(model.kept.devices).isdisjoint(incoming.devices)


def _keeps_steps_on(model: ModelFacts, incoming: ModelFacts) -> bool:
    """Its weights are in host memory, and something else of it is on a device of the other's."""
    if model.is_resident or model.kept is None or model.kept.level != "host":
        return False
    return model.kept.nbytes > 0 and model.devices[0] in incoming.devices


def _harms(model: ModelFacts, incoming: ModelFacts) -> bool:
    """What it keeps cannot stay: a tier always, weights if the incoming one spans devices."""
    if not _keeps_on(model, incoming) or model.kept is None:
        return False
    return model.kept.level == "partial" or len(incoming.devices) > 1
