"""Metrics of models that come and go, read at a scrape."""

from __future__ import annotations

from collections.abc import Iterator

from luce.observability import metrics as m
from luce.placement.coordinator import Coordinator
from luce.placement.residency import ModelRecord
from luce.routing.router import Router

_MS_PER_S = 1000
_BYTES = "_bytes"


def read_placement(coordinator: Coordinator, router: Router) -> Iterator[m.Reading]:
    """Everything placement knows; no worker and no driver is asked."""
    yield m.Reading(m.MODEL_LOADS_FAILED, coordinator.chronicle.num_failed)
    yield m.Reading(m.SWAP_ACTIVE, len(coordinator.arriving) > 0)
    for pool in coordinator.devices():
        device = str(pool["device"])
        for name, value in pool.items():
            if name.endswith(_BYTES) and isinstance(value, int):
                kind = name.removesuffix(_BYTES)
                yield m.Reading(m.POOL_BYTES, value, (device, kind))
    for record in coordinator.fleet:
        yield from _read_model(record, router)


def _read_model(record: ModelRecord, router: Router) -> Iterator[m.Reading]:
    name = (record.name,)
    waiting = 0 if record.is_resident else router.waiting_for(record.name)
    yield m.Reading(m.MODEL_LOADS, record.num_loads, name)
    yield m.Reading(m.WAITING_FOR_RESIDENCY, waiting, name)
    yield m.Reading(m.HOST_WEIGHT_BYTES, record.host_bytes, name)
    if record.last_evict_ms is not None:
        yield m.Reading(m.LAST_EVICT_SECONDS, record.last_evict_ms / _MS_PER_S, name)
    if record.last_reinstate_ms is not None:
        yield m.Reading(m.LAST_REINSTATE_SECONDS, record.last_reinstate_ms / _MS_PER_S, name)
