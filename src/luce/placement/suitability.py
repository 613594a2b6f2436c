"""How one model would sit on each device of a machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from luce.loaders.checkpoint import Checkpoint
from luce.loaders.opening import open_checkpoint
from luce.placement.choice import Candidate, DeviceChoice, choose_device
from luce.placement.devices import Device
from luce.placement.discovery import Machine
from luce.placement.memory_plan import DevicePlan
from luce.placement.planner import PlanRequest, plan_checkpoint
from luce.protocol.messages import LoadSpec

_AMPLE_BYTES = 1 << 60


def choose_for(spec: LoadSpec, machine: Machine) -> DeviceChoice:
    """The device for a model, by the rules of `choice`.

    Raises:
        ModelFileError: the model cannot be read.
        UsageError: an option does not go together with it.
    """
    return choose_among(open_checkpoint(Path(spec.path)), spec, machine)


def choose_among(checkpoint: Checkpoint, spec: LoadSpec, machine: Machine) -> DeviceChoice:
    """The same for an opened model. A context nobody asked for is shortened only if no device holds
    the full one.

    Raises:
        UsageError: an option does not go together with the model.
    """
    full = choose_device(candidates_for(checkpoint, spec, machine))
    if full.device is not None:
        return full
    shortened = choose_device(_fitted_candidates(checkpoint, spec, machine))
    if shortened.device is None:
        return full
    return DeviceChoice(shortened.device, f"{shortened.reason}, with a shorter context")


def _fitted_candidates(checkpoint: Checkpoint, spec: LoadSpec, machine: Machine) -> list[Candidate]:
    """What the model takes when it makes do with what is free."""
    found = []
    for device in machine.inventory:
        free = machine.free_bytes(device)
        plan = plan_checkpoint(checkpoint, PlanRequest(spec, device, free))
        if plan.result == "ok":
            found.append(Candidate(device, free, plan.bytes_on(device.uuid)))
    return found


def candidates_for(checkpoint: Checkpoint, spec: LoadSpec, machine: Machine) -> list[Candidate]:
    """Every device with what is free and what would be needed.

    Raises:
        UsageError: an option does not go together with the model.
    """
    return [
        Candidate(
            device=device,
            free_bytes=machine.free_bytes(device),
            needed_bytes=one_sequence_plan(checkpoint, spec, device).total_bytes,
        )
        for device in machine.inventory
    ]


def one_sequence_plan(checkpoint: Checkpoint, spec: LoadSpec, device: Device) -> DevicePlan:
    """What the model takes on a device with its full context and, if the pool was left open, room
    for one sequence.

    Raises:
        UsageError: an option does not go together with the model.
    """
    request = PlanRequest(spec, _with_ample_room(device))
    plan = plan_checkpoint(checkpoint, request)
    if spec.kv_pool_tokens is None and plan.sizes is not None:
        one = msgspec.structs.replace(spec, kv_pool_tokens=plan.sizes.max_ctx)
        plan = plan_checkpoint(checkpoint, PlanRequest(one, request.device))
    return plan.devices[device.uuid]


def _with_ample_room(device: Device) -> Device:
    return Device(
        id=device.id,
        uuid=device.uuid,
        backend=device.backend,
        name=device.name,
        total_bytes=_AMPLE_BYTES,
        is_declared=True,
    )
