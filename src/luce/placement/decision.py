"""May this model load now, and who gives way to it: by bytes, and pure.

`luce plan --explain` asks the same question of a snapshot and gets the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from luce.errors import InsufficientDeviceMemory, ModelExceedsDevice
from luce.placement.ledger import PoolState
from luce.placement.residency import Depth
from luce.placement.situation import Commit, Decision, Eviction, MakeRoom, Refuse, Wait
from luce.placement.victims import Victim, choose
from luce.units import format_bytes

AdmissionPolicy = Literal["gate", "proceed"]

RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that wants to come in.

    Attributes:
        plan: bytes by pool.
        needs: those of them that it does not hold already.
        is_exclusive: nobody knows what it takes: it needs its pools for itself.
    """

    name: str
    plan: Mapping[str, int]
    needs: Mapping[str, int]
    is_exclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Everything else in the moment of the decision.

    Attributes:
        pools: the candidate's, by name.
        victims: residents and sleepers, busy ones included, without the pinned.
        moving: pools on which something loads or gives memory back.
        num_resident: models that are resident or loading.
        models_max: how many may be; 0 = any number.
        policy: what to do when nothing helps.
    """

    pools: Mapping[str, PoolState]
    victims: Sequence[Victim] = ()
    moving: frozenset[str] = frozenset()
    num_resident: int = 0
    models_max: int = 0
    policy: AdmissionPolicy = "gate"


@dataclass(frozen=True, slots=True)
class _Shortage:
    """What is missing.

    Attributes:
        bytes: by pool, only where something is missing.
        models: how many residents have to go because of their number alone.
        unknown: pools of which nobody knows what is free.
    """

    bytes: dict[str, int] = field(default_factory=dict)
    models: int = 0
    unknown: tuple[str, ...] = ()


def decide(candidate: Candidate, room: Room) -> Decision:
    """The whole decision; see spec swap-and-admission B6, steps 3 to 12."""
    refusal = _above_ceiling(candidate, room)
    if refusal is not None:
        return refusal
    shortage = _shortage(candidate, room)
    if shortage.unknown and room.policy == "gate":
        return _insufficient(candidate, room, shortage)
    if not shortage.bytes and not shortage.models:
        return Commit(_known(shortage))
    idle = choose([v for v in room.victims if v.is_idle], shortage.bytes, shortage.models)
    if idle is not None:
        return MakeRoom(_evictions(idle), _missing(shortage))
    if room.moving & set(shortage.bytes) or (shortage.models and room.moving):
        return Wait(f"{candidate.name} waits for a model that loads or gives memory back")
    free_to_go = [v for v in room.victims if not v.is_owed]
    busy = choose(free_to_go, shortage.bytes, shortage.models)
    if busy is not None:
        return MakeRoom(_evictions(busy), f"{_missing(shortage)}; they finish what runs first")
    if choose(room.victims, shortage.bytes, shortage.models) is not None:
        return Wait(f"{candidate.name} waits for models that serve those they came in for")
    if room.policy == "proceed" and not shortage.models:
        return Commit(f"proceeds although {_missing(shortage)}")
    return _insufficient(candidate, room, shortage)


def _above_ceiling(candidate: Candidate, room: Room) -> Refuse | None:
    """It does not fit an empty device, or not beside what is pinned there."""
    if candidate.is_exclusive:
        return None
    for name, planned in candidate.plan.items():
        state = room.pools[name]
        total = state.pool.total_bytes
        if not total:
            continue
        ceiling = total - state.pool.margin_bytes
        if planned > ceiling:
            text = (
                f"Model {candidate.name} needs {format_bytes(planned)} on {name}, which has "
                f"{format_bytes(max(0, ceiling))} for models even when empty."
            )
            return Refuse(ModelExceedsDevice(text), f"exceeds {name}")
        if planned > ceiling - state.pinned_bytes:
            return _insufficient(candidate, room, _shortage(candidate, room))
    return None


def _shortage(candidate: Candidate, room: Room) -> _Shortage:
    missing: dict[str, int] = {}
    unknown = []
    for name, needed in candidate.needs.items():
        state = room.pools[name]
        avail = state.avail_bytes
        if avail is None:
            unknown.append(name)
        if candidate.is_exclusive:
            # What the candidate holds itself is not in its own way.
            own = candidate.plan.get(name, 0) - needed
            others = state.ours_bytes - own + state.pending_bytes
            if others > 0:
                missing[name] = others
        elif avail is not None and needed > avail:
            missing[name] = needed - avail
    over = room.num_resident + 1 - room.models_max if room.models_max else 0
    return _Shortage(missing, max(0, over), tuple(unknown))


def _evictions(victims: Sequence[Victim]) -> tuple[Eviction, ...]:
    depth: dict[bool, Depth] = {True: "cold", False: "unload"}
    return tuple(Eviction(victim.name, depth[victim.is_resident]) for victim in victims)


def _known(shortage: _Shortage) -> str:
    if not shortage.unknown:
        return "there is room"
    return f"nobody knows what is free on {', '.join(shortage.unknown)}"


def _missing(shortage: _Shortage) -> str:
    parts = [f"{format_bytes(count)} are missing on {p}" for p, count in shortage.bytes.items()]
    if shortage.models:
        parts.append("no more models may be resident")
    return " and ".join(parts)


def _insufficient(candidate: Candidate, room: Room, shortage: _Shortage) -> Refuse:
    numbers = []
    for name in {**shortage.bytes, **dict.fromkeys(shortage.unknown, 0)} or candidate.needs:
        state = room.pools[name]
        avail = state.avail_bytes
        needed = candidate.needs[name]
        numbers.append(
            f"{name}: {'all' if candidate.is_exclusive else format_bytes(needed)} needed, "
            f"{'unknown' if avail is None else format_bytes(max(0, avail))} available, "
            f"{format_bytes(state.external_bytes)} of other programs, "
            f"{format_bytes(state.pending_bytes)} promised, "
            f"{format_bytes(state.pinned_bytes)} pinned"
        )
    reason = "; ".join(numbers)
    if shortage.models and not shortage.bytes:
        reason = f"{room.num_resident} models are resident, no more may be, and none can go"
    text = f"Model {candidate.name} cannot be loaded now. {reason}."
    return Refuse(InsufficientDeviceMemory(text, retry_after_s=RETRY_AFTER_S), reason)
