"""`--target-device auto`: the device that suits one model best, with the reason.

Source: spec server §8.3, by free memory. Pure: takes what drivers and planner said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luce.placement.devices import Device
from luce.units import format_bytes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device, and whether one model would fit.

    Attributes:
        device: which.
        free_bytes: what a model may take there now; None = nobody knows.
        needed_bytes: what the model takes there with one sequence of its full context.
    """

    device: Device
    free_bytes: int | None
    needed_bytes: int

    @property
    def room_bytes(self) -> int:
        """What is free, where unknown means nothing."""
        return self.free_bytes or 0

    @property
    def fits(self) -> bool:
        """Whether the model can go there now."""
        return self.needed_bytes <= self.room_bytes


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The device chosen.

    Attributes:
        device: None if none holds the model.
        reason: why this one, or why none, for people.
    """

    device: Device | None
    reason: str


def choose_device(candidates: Sequence[Candidate]) -> DeviceChoice:
    """The roomiest discrete GPU that holds the model, else an integrated one, else one that others
    compute on, else the CPU.

    Args:
        candidates: every device, once.
    """
    gpus = [each for each in candidates if each.device.backend != "cpu"]
    idle = [each for each in gpus if not each.device.num_foreign_processes]
    ranks = (
        ("the discrete GPU with most free memory that holds the model", _discrete(idle)),
        ("no discrete GPU holds the model, this integrated one does", _integrated(idle)),
        ("no idle GPU holds the model; others compute on this one, which does", gpus),
        (_cpu_reason(gpus), [each for each in candidates if each not in gpus]),
    )
    for reason, group in ranks:
        fitting = [each for each in group if each.fits]
        if fitting:
            # Of equals the first by index.
            return DeviceChoice(max(fitting, key=lambda each: each.room_bytes).device, reason)
    return DeviceChoice(None, _none_reason(candidates))


def _discrete(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [each for each in candidates if not each.device.is_unified]


def _integrated(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [each for each in candidates if each.device.is_unified]


def _cpu_reason(gpus: Sequence[Candidate]) -> str:
    if not gpus:
        return "there is no GPU"
    return f"no GPU holds the model ({_shortage(gpus)}), the CPU does"


def _none_reason(candidates: Sequence[Candidate]) -> str:
    if not candidates:
        return "there is no device"
    return f"no device holds the model ({_shortage(candidates)})"


def _shortage(candidates: Sequence[Candidate]) -> str:
    roomiest = max(candidates, key=lambda each: each.room_bytes)
    needed, free = format_bytes(roomiest.needed_bytes), format_bytes(roomiest.room_bytes)
    return f"{needed} needed on {roomiest.device.id}, {free} free"
