"""Where each model goes and how much it takes, settled before its worker is started."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from luce.config.device import AUTO, parse_device
from luce.config.listener import ServerConfig
from luce.config.model import ModelConfig
from luce.config.routing import RoutingConfig
from luce.errors import PlacementError
from luce.listener.startup import load_spec
from luce.placement.devices import Device
from luce.placement.discovery import Machine, drivers, look_around
from luce.placement.memory_plan import MemoryPlan
from luce.placement.planner import PlanRequest, frozen_spec, plan_model
from luce.placement.suitability import choose_for
from luce.protocol.messages import LoadSpec

log = logging.getLogger(__name__)


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
    placed = tuple(planned(model, machine) for model in config.models)
    for model in placed:
        if model.plan.result == "cannot_fit":
            raise PlacementError(f"not enough memory on {model.device.id}: {model.plan.problem}")
        _log_plan(model)
    num_models = len(placed)
    return tuple(
        replace(model, spec=msgspec.structs.replace(model.spec, num_models=num_models))
        for model in placed
    )


def planned(config: ModelConfig, machine: Machine) -> PlacedModel:
    """Place and plan one model, whether it fits or not.

    Raises:
        ModelFileError: the model cannot be read.
        UsageError: an option does not go together with it.
        PlacementError: a device was to be chosen for it, and none holds it.
    """
    placed = _with_device(config, machine)
    target = parse_device(placed.target_device)
    device = machine.device(target.backend, target.index)
    spec = load_spec(placed)
    plan = plan_model(PlanRequest(spec, device, machine.free_bytes(device)))
    return PlacedModel(placed, device, plan, frozen_spec(spec, plan))


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
    log.info("memory planned", extra={"model": name, "device": model.device.id, **parts})
