"""Where each model goes and how much it takes, settled before its worker is started."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from luce.config.device import AUTO, parse_device
from luce.config.forms import snapshot_bytes
from luce.config.listener import ServerConfig
from luce.config.model import ModelConfig
from luce.config.profile_settings import profile_note
from luce.config.routing import RoutingConfig
from luce.errors import PlacementError, UsageError
from luce.listener.startup import load_spec
from luce.loaders.file_identity import FileIdentity
from luce.placement.devices import Device
from luce.placement.discovery import Machine, drivers, look_around
from luce.placement.memory_plan import MemoryPlan
from luce.placement.planner import PlanRequest, frozen_spec, plan_model
from luce.placement.suitability import choose_for
from luce.protocol.messages import LoadSpec
from luce.units import format_bytes

log = logging.getLogger(__name__)

_MIB = 1 << 20
_PARKED_SHARE = 4
"""One part in so many of the free host memory may hold weights, if nobody says how much."""


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model with its place.

    Attributes:
        config: its block, with a device in place of "auto".
        device: where it goes.
        plan: what it takes.
        spec: what its worker is told: the plan's sizes, not to be fitted again.
    """

    config: ModelConfig
    device: Device
    plan: MemoryPlan
    spec: LoadSpec


@dataclass(frozen=True, slots=True)
class HostShare:
    """The host's memory, as far as models share it.

    Attributes:
        free_bytes: what they may take together; None: nobody knows.
        num_models: how many they are.
        parked_bytes: of it, for weights of those that are swapped out.
        takes_turns: those that share a device do.
    """

    free_bytes: int | None = None
    num_models: int = 1
    parked_bytes: int = 0
    takes_turns: bool = False


def plan_parts(model: PlacedModel) -> dict[str, dict[str, int]]:
    """A plan for the status: bytes of each part, by device id, and on the host; empty if nobody
    knows."""
    if not model.plan.devices:
        return {}
    where = {model.device.id: model.plan.devices[model.device.uuid], "host": model.plan.host}
    return {place: dict(parts.components()) for place, parts in where.items()}


def machine_for(routing: RoutingConfig, models: Iterable[ModelConfig]) -> Machine:
    """The machine these models are placed on. Blocking: drivers may take a second.

    Raises:
        UsageError: an inventory or a budget makes no sense.
    """
    names = [*(model.target_device for model in models), *routing.memory_budgets]
    targets = [parse_device(name) for name in names if name != AUTO]
    parts = [target.index for target in targets if target.backend == "cpu"]
    return look_around(drivers(routing.device_inventory, parts), routing.memory_budgets)


def place_models(config: ServerConfig, machine: Machine) -> tuple[PlacedModel, ...]:
    """Place and plan every model. Reads headers of their files.

    Raises:
        ModelFileError: a model cannot be read.
        UsageError: an option does not go together with a model.
        PlacementError: a model does not fit, even if nothing else were there.
    """
    placed = plan_models(config, machine)
    for model in placed:
        if model.plan.result == "cannot_fit":
            raise PlacementError(f"not enough memory on {model.device.id}: {model.plan.problem}")
        _log_plan(model)
    return placed


def plan_models(config: ServerConfig, machine: Machine) -> tuple[PlacedModel, ...]:
    """Place and plan every model, whether it fits or not; who takes turns is planned beside what
    the others keep on its device.

    Raises:
        ModelFileError: a model cannot be read.
        UsageError: an option does not go together with a model.
        PlacementError: as `planned` says.
    """
    host = host_share(config, machine)
    alone = tuple(planned(model, machine, host) for model in config.models)
    if not config.routing.swap_residency:
        return alone
    return tuple(_among(model, alone, machine, host) for model in alone)


def _among(
    model: PlacedModel, models: Iterable[PlacedModel], machine: Machine, host: HostShare
) -> PlacedModel:
    """One of those that take turns where they share a device."""
    others = [o for o in models if o is not model and o.device.uuid == model.device.uuid]
    if not others:
        return _planned_on(model.device, model.config, machine, replace(host, takes_turns=False))
    beside_bytes = sum(other.plan.kept_bytes for other in others)
    return _planned_on(model.device, model.config, machine, host, beside_bytes)


def host_share(config: ServerConfig, machine: Machine) -> HostShare:
    """What all models of a configuration have of the host's memory."""
    host = machine.inventory.by_id("cpu:0")
    free = None if host is None else machine.free_bytes(host)
    parked = parked_bytes(config.routing, free or 0)
    return HostShare(free, len(config.models), parked, config.routing.swap_residency)


def parked_bytes(routing: RoutingConfig, available_bytes: int) -> int:
    """Host memory for the weights of models that are swapped out, all of them together."""
    if not routing.swap_residency:
        return 0
    if routing.swap_host_mib is None:
        return available_bytes // _PARKED_SHARE
    return routing.swap_host_mib * _MIB


def planned(config: ModelConfig, machine: Machine, host: HostShare = HostShare()) -> PlacedModel:
    """Place and plan one model, whether it fits or not.

    Raises:
        ModelFileError: the model cannot be read.
        UsageError: an option does not go together with it.
        PlacementError: a device was to be chosen for it, and none holds it, or it is to keep more
            on the host than the host has.
    """
    try:
        return _planned(config, machine, host)
    except UsageError as error:
        raise UsageError(f"{error}{profile_note(config, str(error))}") from error


def _planned(config: ModelConfig, machine: Machine, host: HostShare) -> PlacedModel:
    placed = _with_device(config, machine)
    _check_snapshots(placed, machine)
    target = parse_device(placed.target_device)
    return _planned_on(machine.device(target.backend, target.index), placed, machine, host)


def _planned_on(
    device: Device,
    config: ModelConfig,
    machine: Machine,
    host: HostShare,
    beside_bytes: int = 0,
) -> PlacedModel:
    spec = msgspec.structs.replace(
        load_spec(config), num_models=host.num_models, takes_turns=host.takes_turns
    )
    free = machine.free_bytes(device)
    # Whatever the worker finds there later must be what was planned, even if it changes now.
    spec = msgspec.structs.replace(spec, files=FileIdentity.of(config.path).digest)
    plan = plan_model(
        PlanRequest(spec, device, free, host.free_bytes, host.parked_bytes, beside_bytes)
    )
    return PlacedModel(config, device, plan, frozen_spec(spec, plan))


def _check_snapshots(config: ModelConfig, machine: Machine) -> None:
    """Copies of prefixes take their memory as they come, so that no load would fail."""
    asked = snapshot_bytes(config.prefix_snapshot_memory) or 0
    host = machine.inventory.by_id("cpu:0")
    if host is not None and host.total_bytes and asked > host.total_bytes:
        raise PlacementError(
            f"not enough memory on the host: --prefix-snapshot-memory of {config.name} is "
            f"{format_bytes(asked)}; the host has {format_bytes(host.total_bytes)}"
        )
    if asked and not config.prefix_cache:
        log.warning(
            "an option has no effect",
            extra={
                "model": config.name,
                "option": "--prefix-snapshot-memory",
                "why": "there is no prefix cache",
            },
        )


def _with_device(config: ModelConfig, machine: Machine) -> ModelConfig:
    if config.target_device != AUTO:
        return config
    choice = choose_for(load_spec(config), machine)
    if choice.device is None:
        raise PlacementError(f"--target-device auto: {config.name}: {choice.reason}")
    log.info(
        "device chosen",
        extra={"model": config.name, "device": choice.device.id, "reason": choice.reason},
    )
    return replace(config, target_device=choice.device.id)


def _log_plan(model: PlacedModel) -> None:
    name, plan = model.config.name, model.plan
    if plan.result == "unknown":
        log.warning("memory is not planned", extra={"model": name, "why": plan.problem})
        return
    for warning in plan.warnings:
        log.warning("memory plan", extra={"model": name, "warning": warning})
    components = plan.devices[model.device.uuid].components()
    parts = {f"{component}_bytes": count for component, count in components}
    parts["host_bytes"] = plan.host.total_bytes
    log.info("memory planned", extra={"model": name, "device": model.device.id, **parts})
