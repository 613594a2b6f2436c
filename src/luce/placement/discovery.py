"""The devices of this machine, or of a file that stands in for it, under declared budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from luce.errors import UsageError
from luce.placement.amd import AmdDriver
from luce.placement.devices import Attribution, Backend, Device, Inventory, Probe
from luce.placement.driver import Driver, DriverProbe
from luce.placement.host import HostDriver
from luce.placement.inventory_file import InventoryFile
from luce.placement.nvidia import NvidiaDriver


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is, and who knows how much of it is free.

    Attributes:
        inventory: the devices.
        probe: asks for their free memory.
        attribution: asks what single processes hold of it; None: nobody can say.
    """

    inventory: Inventory
    probe: Probe
    attribution: Attribution | None = None

    def device(self, backend: Backend, index: int) -> Device:
        """The device of this name; one that no driver knows has no memory anybody can plan with."""
        device_id = f"{backend}:{index}"
        found = self.inventory.by_id(device_id)
        if found is not None:
            return found
        return Device(id=device_id, uuid=device_id, backend=backend, name="not found")

    def free_bytes(self, device: Device) -> int | None:
        """What a model may take of a device now: what is free, less the margin.

        None if nobody knows.
        """
        sample = self.probe.sample(device.uuid)
        if sample is None or not device.total_bytes:
            return None
        return max(0, min(sample.free_bytes, device.total_bytes) - device.margin_bytes)


def drivers(file: Path | None = None, parts: Sequence[int] = ()) -> list[Driver]:
    """Who is asked for devices: a file that stands in for the machine alone, or else everybody.

    Args:
        file: an inventory.
        parts: the N of each `cpu:N` that models are to be placed on.
    """
    if file is not None:
        return [InventoryFile(file, parts)]
    return [NvidiaDriver(), AmdDriver(), HostDriver(parts)]


def look_around(sources: Sequence[Driver], budgets: Mapping[str, int]) -> Machine:
    """Find the devices. Blocking: drivers may take a second.

    Args:
        sources: who is asked.
        budgets: device id → bytes that may be used of it.

    Raises:
        UsageError: a budget is for a device that is not there, or a file is no inventory.
    """
    probe = DriverProbe(sources)
    declared = dict(budgets)
    devices = [
        replace(device, total_bytes=declared.pop(device.id), is_declared=True)
        if device.id in declared
        else device
        for device in probe.devices
    ]
    for missing in declared:
        found = ", ".join(device.id for device in devices) or "none"
        raise UsageError(f"--device-memory {missing}: no such device; devices found: {found}")
    return Machine(Inventory(devices), probe, probe)
