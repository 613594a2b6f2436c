"""What a running server would decide about a model: from its status, by its own rule.

The status says everything the rule reads but one thing: whether a resident still owes service to
those it came in for. Here none does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from luce.placement.decision import AdmissionPolicy, Candidate, Room, decide
from luce.placement.ledger import Pool, PoolState
from luce.placement.residency import Residency
from luce.placement.situation import Commit, Decision, Look, MakeRoom, Refuse, Wait
from luce.placement.victims import Victim

_MOVING = ("reserved", "loading", "draining", "unloading")
_COUNTED = (*_MOVING, Residency.READY.value)
_MAY_GO = (Residency.READY.value, Residency.SLEEPING.value)
_HERE = {
    Residency.READY.value: "it serves",
    Residency.DRAINING.value: "it serves what it has, and gives way to another then",
}
_ENTERING = (Residency.RESERVED.value, Residency.LOADING.value)
PRESENT = ("resident", "loading")
"""Verdicts on models about which nothing is to be decided."""
_MS_PER_S = 1000


class PoolRow(msgspec.Struct, kw_only=True):
    """Memory of a device in a status; see `Ledger.devices`."""

    device: str
    total_bytes: int
    free_bytes: int | None
    ours_bytes: int
    pending_bytes: int
    returning_bytes: int
    visible_bytes: int | None = None
    margin_bytes: int
    pinned_bytes: int
    planned_bytes: dict[str, int]
    held_bytes: dict[str, int]


class ModelRow(msgspec.Struct, kw_only=True):
    """A model in a status, as far as decisions read it."""

    id: str
    in_flight: int
    residency_state: str = ""
    waiting_for_residency: int = 0
    pinned: bool = False
    idle_ms: int = 0
    last_reinstate_ms: int | None = None
    failed_retry_in_ms: int | None = None


class ServerStatus(msgspec.Struct, kw_only=True):
    """What of `/status/json` matters; without `devices` the server decides nothing by bytes."""

    models: list[ModelRow]
    devices: list[PoolRow] = []
    admission_policy: AdmissionPolicy = "gate"
    models_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Whom to ask about.

    Attributes:
        name: the model's; one the server has may hold something already.
        plan: bytes by pool; its pools are among the status's.
        is_exclusive: nobody knows what it takes.
    """

    name: str
    plan: Mapping[str, int]
    is_exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision in words.

    Attributes:
        verdict: load, make room, wait or refuse; of a model that is in already, or on its way,
            what it is.
        victims: who gives way, in order.
        reason: why.
    """

    verdict: str
    victims: tuple[str, ...]
    reason: str


def explain(question: Question, status: ServerStatus) -> Explanation:
    """The decision the server would take now."""
    present = _present(question.name, status)
    if present is not None:
        return present
    rows = {row.device: row for row in status.devices}
    others = [model for model in status.models if model.id != question.name]
    moving = {model.id for model in others if model.residency_state in _MOVING}
    held = {pool: rows[pool].held_bytes.get(question.name, 0) for pool in question.plan}
    candidate = Candidate(
        question.name,
        question.plan,
        {pool: max(0, count - held[pool]) for pool, count in question.plan.items()},
        question.is_exclusive,
    )
    room = Room(
        pools={pool: _state(rows[pool]) for pool in question.plan},
        victims=[_victim(model, rows) for model in others if _may_go(model)],
        moving=frozenset(pool for pool, row in rows.items() if moving & set(row.planned_bytes)),
        num_resident=sum(model.residency_state in _COUNTED for model in others),
        models_max=status.models_max,
        policy=status.admission_policy,
    )
    return _describe(decide(candidate, room))


def _present(name: str, status: ServerStatus) -> Explanation | None:
    """What there is to say of a model about which nothing is to be decided; None of any other."""
    row = next((row for row in status.models if row.id == name), None)
    state = "" if row is None else row.residency_state
    if row is not None and row.failed_retry_in_ms:
        left_s = math.ceil(row.failed_retry_in_ms / _MS_PER_S)
        return Explanation("refuse", (), f"it failed, and is not tried again for {left_s} s")
    if state in _HERE:
        return Explanation("resident", (), _HERE[state])
    if state in _ENTERING:
        return Explanation("loading", (), "it is being brought in")
    return None


def _describe(decision: Decision) -> Explanation:
    match decision:
        case Commit(reason=reason):
            return Explanation("load", (), reason)
        case MakeRoom(evictions=evictions, reason=reason):
            return Explanation("make room", tuple(each.model for each in evictions), reason)
        case Wait(reason=reason):
            return Explanation("wait", (), reason)
        case Refuse(reason=reason):
            return Explanation("refuse", (), reason)
        case Look(devices=devices):
            return Explanation("look", (), f"asks first what is free on {', '.join(devices)}")


def _state(row: PoolRow) -> PoolState:
    return PoolState(
        pool=Pool(row.device, (row.device,), row.total_bytes, row.margin_bytes),
        free_bytes=row.free_bytes,
        ours_bytes=row.ours_bytes,
        pending_bytes=row.pending_bytes,
        returning_bytes=row.returning_bytes,
        pinned_bytes=row.pinned_bytes,
        visible_bytes=row.visible_bytes,
    )


def _may_go(model: ModelRow) -> bool:
    if model.pinned or model.residency_state not in _MAY_GO:
        return False
    is_ready = model.residency_state == Residency.READY.value
    return is_ready or model.waiting_for_residency == 0


def _victim(model: ModelRow, rows: Mapping[str, PoolRow]) -> Victim:
    frees = {pool: row.held_bytes.get(model.id, 0) for pool, row in rows.items()}
    return Victim(
        name=model.id,
        frees=frees,
        idle_s=model.idle_ms / _MS_PER_S,
        is_resident=model.residency_state == Residency.READY.value,
        is_idle=model.in_flight == 0 and model.waiting_for_residency == 0,
        reload_ms=model.last_reinstate_ms or 0,
    )
