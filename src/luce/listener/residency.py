"""Puts together who decides which models are resident, for a server whose models take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from luce.config.device import parse_device
from luce.config.listener import ServerConfig
from luce.config.routing import RoutingConfig
from luce.listener.device_watch import DeviceWatch
from luce.listener.placing import PlacedModel, parked_bytes, plan_parts
from luce.listener.residents import Residents
from luce.listener.served import ServedModels
from luce.placement.coordinator import Coordinator
from luce.placement.discovery import Machine
from luce.placement.effects import CoordinatorOptions
from luce.placement.residency import ModelRecord
from luce.placement.turns import DeviceTurns, TurnOptions
from luce.routing.policy import ByName, PrimaryFirst, RoutePolicy
from luce.routing.router import Router
from luce.sizing.host_memory import available_bytes
from luce.workers.supervisor import Supervisor

_MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the models are, and who knows how full it is there."""

    placed: Sequence[PlacedModel]
    machine: Machine


@dataclass(frozen=True, slots=True)
class Workplace:
    """What deciding needs of the rest of the server."""

    router: Router
    models: ServedModels
    supervisors: Mapping[str, Supervisor]


@dataclass(frozen=True, slots=True)
class Turns:
    """A server whose models take turns on devices.

    Attributes:
        rule: who gives way to whom.
        coordinator: decides.
        residents: does it.
        watch: knows what is free.
    """

    rule: DeviceTurns
    coordinator: Coordinator
    residents: Residents
    watch: DeviceWatch


def policy_of(config: ServerConfig) -> RoutePolicy:
    """How requests select models."""
    if not config.routing.is_by_name:
        return PrimaryFirst()
    names = [model.name for model in config.models]
    return ByName(names, "primary" if config.routing.unknown_model == "primary" else "reject")


def device_sets(config: ServerConfig) -> dict[str, tuple[str, ...]]:
    """Devices of each model, by canonical name, the one of its layers first."""
    sets: dict[str, tuple[str, ...]] = {}
    for model in config.models:
        sets[model.name] = (str(parse_device(model.target_device)),)
    return sets


def build_turns(
    config: ServerConfig, workplace: Workplace, placement: Placement | None = None
) -> Turns:
    """Coordinator and hands for `--swap-residency`.

    Args:
        config: what is served.
        workplace: the rest of the server.
        placement: None = nobody knows what is free.
    """
    sets, options = device_sets(config), config.routing
    rule = DeviceTurns(_turn_options(options))
    watch = _watch(sets, placement)
    residents = Residents(workplace.supervisors, workplace.models, workplace.router, watch)
    placed = placement.placed if placement is not None else ()
    plans = {model.config.name: plan_parts(model) for model in placed}
    coordinator = Coordinator(
        [
            ModelRecord(name=name, devices=devices, plan=plans.get(name, {}))
            for name, devices in sets.items()
        ],
        rule,
        workplace.router,
        residents,
        CoordinatorOptions(drain_timeout_s=float(options.swap_drain_timeout_s)),
    )
    residents.attach(coordinator)
    return Turns(rule, coordinator, residents, watch)


def _turn_options(options: RoutingConfig) -> TurnOptions:
    least_ms = options.swap_min_residency_ms
    return TurnOptions(
        kept_weights=options.kept_weights,
        host_bytes=parked_bytes(options, available_bytes()),
        min_residency_s=None if least_ms is None else least_ms / _MS_PER_S,
        max_wait_s=options.swap_max_wait_ms / _MS_PER_S,
    )


def _watch(sets: Mapping[str, tuple[str, ...]], placement: Placement | None) -> DeviceWatch:
    """Looks at GPUs alone: what is free on the host changes with everything that runs there."""
    if placement is None:
        return DeviceWatch(dict.fromkeys(sets, ()))
    inventory = placement.machine.inventory
    gpus = {device.id: device.uuid for device in inventory if device.backend != "cpu"}
    uuids = {
        name: tuple(gpus[device] for device in devices if device in gpus)
        for name, devices in sets.items()
    }
    return DeviceWatch(uuids, placement.machine.probe)
