"""Puts together a server whose models load when they are asked for, as far as memory goes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from luce.config.listener import ServerConfig
from luce.listener.device_watch import DeviceWatch
from luce.listener.placing import PlacedModel, plan_parts
from luce.listener.residency import Placement, Workplace
from luce.listener.residents import Residents
from luce.placement.byte_room import ByteOptions, ByteRoom
from luce.placement.calibration import measured
from luce.placement.coordinator import Coordinator
from luce.placement.devices import HOST_POOL, Device, Inventory
from luce.placement.effects import CoordinatorOptions
from luce.placement.ledger import Ledger, Pool
from luce.placement.residency import Cooldown, ModelRecord
from luce.placement.samples import Samples
from luce.protocol.messages import Limits
from luce.sizing.model_sizes import DEFAULT_MAX_CTX
from luce.workers.supervisor import Supervisor

log = logging.getLogger(__name__)

_COOLDOWN = Cooldown(first_s=30.0, max_s=300.0)
_MEMORY_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class OnDemand:
    """A server whose models load on demand.

    Attributes:
        ledger: the books.
        coordinator: decides.
        residents: does it.
    """

    ledger: Ledger
    coordinator: Coordinator
    residents: Residents


def build_on_demand(config: ServerConfig, workplace: Workplace, placement: Placement) -> OnDemand:
    """Ledger, coordinator and hands for `--load-on-demand`."""
    options, placed = config.routing, placement.placed
    pools = pools_of(placement.machine.inventory, (model.device for model in placed))
    plans = {model.config.name: plan_by_pool(model, pools) for model in placed}
    samples = Samples()
    rests = {model.config.name: resting_bytes(model, pools) for model in placed}
    ledger = Ledger(pools.values(), plans, samples, options.pin, rests)
    unknown = {model.config.name for model in placed if model.plan.result != "ok"}
    rule = ByteRoom(
        ledger,
        samples,
        ByteOptions(
            policy="proceed" if options.admission_policy == "proceed" else "gate",
            models_max=options.models_max,
            exclusive=frozenset(unknown),
        ),
    )
    devices = {model.config.name: (model.device.uuid,) for model in placed}
    host = [model.device.uuid for model in placed if model.device.backend == "cpu"]
    watch = DeviceWatch(devices, placement.machine.probe, samples, at_once=host)
    if placement.machine.attribution is not None:
        pids = partial(_pids, workplace.supervisors)
        watch.attribute(placement.machine.attribution, pids, _attributed(placement))
    residents = Residents(workplace.supervisors, workplace.models, workplace.router, watch)
    coordinator = Coordinator(
        [_record(model, model.config.name in options.pin) for model in placed],
        rule,
        workplace.router,
        residents,
        CoordinatorOptions(
            cooldown=_COOLDOWN,
            restores=False,
            abandons=True,
            memory_patience_s=_MEMORY_PATIENCE_S,
            idle_unload_s=float(options.idle_unload_s),
        ),
    )
    residents.attach(coordinator)
    residents.charge_by(partial(charge_of, {m.config.name: m for m in placed}, pools))
    for model in placed:
        workplace.models[model.config.name].planned = planned_limits(model)
    return OnDemand(ledger, coordinator, residents)


def pools_of(inventory: Inventory, used: Iterable[Device]) -> dict[str, Pool]:
    """The memory of the devices that are used, and of the host if it is a device."""
    wanted = {device.pool: [device] for device in used}
    for device in inventory:
        if device.pool in wanted or device.pool == HOST_POOL:
            wanted.setdefault(device.pool, []).append(device)
    return {
        name: Pool(
            name,
            tuple(dict.fromkeys(device.uuid for device in devices)),
            min(device.total_bytes for device in devices),
            max(device.margin_bytes for device in devices),
        )
        for name, devices in wanted.items()
    }


def plan_by_pool(model: PlacedModel, pools: Mapping[str, Pool]) -> dict[str, int]:
    """What a model takes of each pool, its device's first; all of it if nobody knows."""
    pool = pools[model.device.pool]
    if model.plan.result != "ok":
        # Never nothing, also where nobody knows how much there is.
        return {pool.name: max(1, pool.total_bytes)}
    plan = {pool.name: model.plan.bytes_on(model.device.uuid)}
    if HOST_POOL in pools:
        plan[HOST_POOL] = plan.get(HOST_POOL, 0) + model.plan.host.total_bytes
    return plan


def resting_bytes(model: PlacedModel, pools: Mapping[str, Pool]) -> dict[str, int]:
    """What a model's process goes on to hold of each pool while the model is evicted: itself, and
    copies of prefixes."""
    return {HOST_POOL: model.plan.host.total_bytes} if HOST_POOL in pools else {}


def charge_of(
    placed: Mapping[str, PlacedModel], pools: Mapping[str, Pool], name: str, peak_bytes: int
) -> dict[str, int]:
    """What a loaded model counts as: as planned, or as measured if that is more."""
    model = placed[name]
    planned = plan_by_pool(model, pools)
    if model.plan.result != "ok":
        return planned
    found = measured(model.plan, model.device, peak_bytes)
    if found.is_over:
        log.warning(
            "model takes more memory than planned",
            extra={
                "model": name,
                "device": model.device.id,
                "planned_bytes": found.planned_bytes,
                "observed_bytes": found.observed_bytes,
            },
        )
    return planned | {model.device.pool: planned[model.device.pool] + found.excess_bytes}


def _attributed(placement: Placement) -> list[str]:
    """Devices on which what a process holds is what its model is charged with.

    A part of the CPU with a budget is none: the process itself is not in the budget.
    """
    inventory = placement.machine.inventory
    return [d.uuid for d in inventory if d.backend != "cpu" or not d.is_declared]


def _pids(supervisors: Mapping[str, Supervisor]) -> dict[str, int]:
    """Processes of the models that have one."""
    pids = {name: supervisor.handle.pid for name, supervisor in supervisors.items()}
    return {name: pid for name, pid in pids.items() if pid is not None}


def _record(model: PlacedModel, is_pinned: bool) -> ModelRecord:
    name = model.config.name
    plan = plan_parts(model)
    return ModelRecord(name=name, devices=(model.device.id,), is_pinned=is_pinned, plan=plan)


def planned_limits(model: PlacedModel) -> Limits:
    """What a model will hold. If nobody could plan it, what was asked for: a request for it has to
    reach whoever decides, and once it has loaded its worker has the word."""
    sizes, config = model.plan.sizes, model.config
    max_ctx = config.max_ctx or DEFAULT_MAX_CTX
    return Limits(
        max_ctx=max_ctx if sizes is None else sizes.max_ctx,
        max_concurrency=config.max_concurrency,
        kv_pool_tokens=config.kv_pool_tokens or max_ctx if sizes is None else sizes.kv_pool_tokens,
        block_tokens=model.spec.block_tokens,
    )
