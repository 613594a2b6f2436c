"""The start of a server whose models take turns: it never needs more than those fit together
that are resident at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from luce.errors import WorkerStartError
from luce.listener.residency import Turns
from luce.listener.residents import resident_outcome
from luce.placement.residency import Depth, Outcome
from luce.placement.turns import first_residents
from luce.protocol.messages import ControlDone
from luce.workers.supervisor import Supervisor

StartModel = Callable[[Supervisor], Coroutine[None, None, None]]
"""Loads a model with its text and returns when it serves."""


async def start_turns(turns: Turns, supervisors: list[Supervisor], start: StartModel) -> None:
    """Load those that are not resident at the end one by one, evict each, then load the others.

    Who has gone keeps captured steps on its device, as long as the next one fits beside them.

    Raises:
        StartupError: one does not load or cannot be evicted.
    """
    devices = {record.name: record.devices for record in turns.coordinator.fleet}
    residents = first_residents(devices)
    by_name = {supervisor.handle.name: supervisor for supervisor in supervisors}
    for name in devices:
        if name not in residents:
            await _make_room(turns, name)
            await start(by_name[name])
            await _park(turns, by_name[name])
    for name in residents:
        await _make_room(turns, name)
    await asyncio.gather(*(start(by_name[name]) for name in residents))
    for name in residents:
        handle = by_name[name].handle
        handle.freeze_layout()
        turns.coordinator.started(name, resident_outcome(handle, ControlDone(0), 0))


async def _park(turns: Turns, supervisor: Supervisor) -> None:
    handle = supervisor.handle
    handle.freeze_layout()
    name, weights = handle.name, handle.ready.weights_bytes if handle.ready is not None else 0
    fleet = turns.coordinator.fleet
    depth = turns.rule.parked_depth(weights, sum(record.host_bytes for record in fleet))
    await _evict(turns, name, depth)


async def _make_room(turns: Turns, name: str) -> None:
    """Weights in host memory are all that is kept where a model's plan finds too little memory."""
    fleet = turns.coordinator.fleet
    record = fleet[name]
    needed = sum(record.plan.get(record.devices[0], {}).values())
    found = await turns.watch.free(name)
    if all(free is None or free >= needed for free in found.values()):
        return
    for other in fleet:
        kept, shares = other.kept, not set(other.devices).isdisjoint(record.devices)
        if shares and kept is not None and kept.level == "host" and kept.nbytes:
            await _evict(turns, other.name, "host")


async def _evict(turns: Turns, name: str, depth: Depth) -> None:
    outcome: Outcome = await turns.residents.evict_now(name, depth)
    if outcome.error:
        raise WorkerStartError(f"Model {name} cannot take turns on its device: {outcome.error}")
    turns.coordinator.started(name, outcome, depth)
