"""What the status says about models that take turns: read from what placement last decided, so
it is there at once also in the middle of a load."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from luce.listener.served import ServedModel
from luce.placement.coordinator import Coordinator
from luce.placement.residency import ModelRecord, Residency
from luce.routing.router import Router

_MS_PER_S = 1000

Presence = Literal["resident", "evicted", "failed"]


class ResidencyFields(msgspec.Struct, kw_only=True):
    """One model's part; absent where every model stays where it is.

    Attributes:
        residency: evicted also while it comes in.
        residency_state: the same in full, as in `placement.residency.Residency`.
        devices: what it computes on.
        weights_resident: its weights are on their device.
        weight_device_bytes: what they take there.
        retained_devices: where it keeps something while it is evicted.
        retained_bytes: how much.
        host_weight_bytes: weights in host memory.
        draining: finishes what runs, to give way.
        waiting_for_residency: requests that wait for it.
        swaps_in: times it came in after the start.
        last_evict_ms: null before the first.
        last_reinstate_ms: null before the first.
        last_residency_error: why it last could not come in.
        failed_retry_in_ms: null unless it is not tried again for a while.
        last_swap_reason: why it last came or went.
        snapshots_lost: prefixes that evictions could not keep.
        pinned: it never gives way.
        idle_ms: since it last had something to do.
        plan: bytes it was planned to take: of each part on its device and on the host, null if
            nobody can say.
        charge: bytes that count as its own, by device.
    """

    residency: Presence | UnsetType = UNSET
    residency_state: str | UnsetType = UNSET
    devices: tuple[str, ...] | UnsetType = UNSET
    weights_resident: bool | UnsetType = UNSET
    weight_device_bytes: int | UnsetType = UNSET
    retained_devices: tuple[str, ...] | UnsetType = UNSET
    retained_bytes: int | UnsetType = UNSET
    host_weight_bytes: int | UnsetType = UNSET
    draining: bool | UnsetType = UNSET
    waiting_for_residency: int | UnsetType = UNSET
    swaps_in: int | UnsetType = UNSET
    last_evict_ms: int | UnsetType | None = UNSET
    last_reinstate_ms: int | UnsetType | None = UNSET
    last_residency_error: str | UnsetType | None = UNSET
    failed_retry_in_ms: int | UnsetType | None = UNSET
    last_swap_reason: str | UnsetType = UNSET
    snapshots_lost: int | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    idle_ms: int | UnsetType = UNSET
    plan: dict[str, dict[str, int]] | UnsetType | None = UNSET
    charge: dict[str, int] | UnsetType = UNSET


class PlacementFields(msgspec.Struct, kw_only=True):
    """The whole server's part; absent where every model stays where it is.

    Attributes:
        swap_residency: whether models take turns by the devices they share.
        swap_active: a transition is under way.
        devices: memory of each, by UUID, where bytes decide.
        admission_policy: what becomes of a model that does not fit, where bytes decide.
        models_max: most models that may be resident, likewise; 0: any number.
        decisions: the last 100, oldest first.
    """

    swap_residency: bool | UnsetType = UNSET
    swap_active: bool | UnsetType = UNSET
    devices: list[dict[str, Any]] | UnsetType = UNSET
    admission_policy: str | UnsetType = UNSET
    models_max: int | UnsetType = UNSET
    decisions: list[dict[str, Any]] | UnsetType = UNSET


def residency_fields(model: ServedModel, router: Router) -> dict[str, Any]:
    """The fields of one model; empty where it stays where it is."""
    record = model.record
    if record is None:
        return {}
    now_s = time.monotonic()
    kept = record.kept
    return {
        "residency": _presence(record),
        "residency_state": record.state.value,
        "devices": record.devices,
        "weights_resident": record.is_resident or (kept is not None and kept.level == "warm"),
        "weight_device_bytes": record.weight_bytes,
        "retained_devices": kept.devices if kept is not None else (),
        "retained_bytes": kept.nbytes if kept is not None else 0,
        "host_weight_bytes": record.host_bytes,
        "draining": record.state is Residency.DRAINING,
        "waiting_for_residency": 0 if record.is_resident else router.waiting_for(record.name),
        "swaps_in": record.num_loads,
        "last_evict_ms": record.last_evict_ms,
        "last_reinstate_ms": record.last_reinstate_ms,
        "last_residency_error": record.last_problem or None,
        "failed_retry_in_ms": _retry_in_ms(record, now_s),
        "last_swap_reason": record.last_reason,
        "snapshots_lost": record.snapshots_lost,
        "pinned": record.is_pinned,
        "idle_ms": round((now_s - record.last_use_s) * _MS_PER_S) if record.last_use_s else 0,
        "plan": {place: dict(parts) for place, parts in record.plan.items()} or None,
        "charge": dict(record.charge),
    }


def placement_fields(coordinator: Coordinator | None) -> dict[str, Any]:
    """The fields of the server; empty where every model stays where it is."""
    if coordinator is None:
        return {}
    return {
        "swap_residency": not coordinator.has_books,
        "swap_active": bool(coordinator.arriving),
        "devices": [dict(device) for device in coordinator.devices()],
        **coordinator.terms,
        "decisions": _decisions(coordinator),
    }


def _decisions(coordinator: Coordinator) -> list[dict[str, Any]]:
    """The last ones, at the times that a wall clock showed."""
    rows = msgspec.to_builtins(coordinator.chronicle.history.recent())
    ahead_s = datetime.now(tz=UTC).timestamp() - time.monotonic()
    return [{**row, "at_s": round(row["at_s"] + ahead_s, 3)} for row in rows]


def _presence(record: ModelRecord) -> Presence:
    if record.is_resident:
        return "resident"
    return "failed" if record.state is Residency.COOLDOWN else "evicted"


def _retry_in_ms(record: ModelRecord, now_s: float) -> int | None:
    if record.state is not Residency.COOLDOWN:
        return None
    return max(0, round((record.retry_at_s - now_s) * _MS_PER_S))
