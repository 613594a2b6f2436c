"""What a model turned out to take, against what was planned. Pure.

Source: spec swap-and-admission B2.5: the charge is the larger of both, and never below the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from luce.placement.devices import Device
from luce.placement.memory_plan import MemoryPlan
from luce.placement.planner import CONTEXT_BYTES, PROCESS_BYTES

_WORTH_TELLING_PERCENT = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """A plan after its model has loaded.

    Attributes:
        charge: bytes that count as the model's, by device UUID.
        planned_bytes: on its device.
        observed_bytes: there, by the worker's own account.
    """

    charge: dict[str, int]
    planned_bytes: int
    observed_bytes: int

    @property
    def excess_bytes(self) -> int:
        """What it took beyond the plan."""
        return max(0, self.observed_bytes - self.planned_bytes)

    @property
    def is_over(self) -> bool:
        """Whether it took so much more than planned that somebody should know."""
        return self.observed_bytes * 100 > self.planned_bytes * (100 + _WORTH_TELLING_PERCENT)


def measured(plan: MemoryPlan, device: Device, peak_bytes: int) -> Measured:
    """Compare.

    Args:
        plan: as it was made.
        device: where the model is.
        peak_bytes: `Ready.peak_bytes`.
    """
    if device.backend == "cpu":
        # The process itself is planned on the host.
        observed = max(0, peak_bytes - PROCESS_BYTES)
    else:
        observed = peak_bytes + CONTEXT_BYTES if peak_bytes else 0
    planned = plan.bytes_on(device.uuid)
    charge = {uuid: parts.total_bytes for uuid, parts in plan.devices.items()}
    charge[device.uuid] = max(planned, observed)
    return Measured(charge, planned, observed)
