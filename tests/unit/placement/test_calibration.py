"""What is charged after a load: the larger of plan and measurement."""

from __future__ import annotations

import pytest

from luce.placement.calibration import measured
from luce.placement.devices import Device
from luce.placement.memory_plan import DevicePlan, MemoryPlan, PlanIdentity
from luce.placement.planner import CONTEXT_BYTES, PROCESS_BYTES

MIB = 1 << 20
GPU = Device(id="cuda:0", uuid="GPU-1", backend="cuda", name="x", total_bytes=1 << 34)
CPU = Device(id="cpu:0", uuid="cpu:0", backend="cpu", name="x", total_bytes=1 << 34)


def plan(uuid: str, nbytes: int) -> MemoryPlan:
    return MemoryPlan(
        identity=PlanIdentity("", (), (uuid,), ""),
        devices={uuid: DevicePlan(weights_bytes=nbytes), "other": DevicePlan(kv_bytes=7)},
        result="ok",
    )


@pytest.mark.parametrize(
    ("device", "constant"), [(GPU, CONTEXT_BYTES), (CPU, -PROCESS_BYTES)], ids=["gpu", "cpu"]
)
def test_the_larger_counts(device: Device, constant: int) -> None:
    planned = 2000 * MIB
    below = measured(plan(device.uuid, planned), device, planned - constant - MIB)
    assert below.charge == {device.uuid: planned, "other": 7}
    assert (below.observed_bytes, below.excess_bytes, below.is_over) == (planned - MIB, 0, False)
    above = measured(plan(device.uuid, planned), device, planned - constant + MIB)
    assert above.charge[device.uuid] == planned + MIB
    assert (above.excess_bytes, above.is_over) == (MIB, False)
    far = measured(plan(device.uuid, planned), device, planned - constant + 101 * MIB)
    assert far.is_over


@pytest.mark.parametrize("device", [GPU, CPU])
def test_a_worker_that_does_not_say_is_charged_as_planned(device: Device) -> None:
    found = measured(plan(device.uuid, MIB), device, 0)
    assert found.charge[device.uuid] == MIB
    assert (found.observed_bytes, found.is_over) == (0, False)


def test_an_unknown_plan_is_charged_what_was_seen() -> None:
    unknown = MemoryPlan(identity=PlanIdentity("", (), ("GPU-1",), ""), result="unknown")
    found = measured(unknown, GPU, 100 * MIB)
    assert found.charge == {"GPU-1": 100 * MIB + CONTEXT_BYTES}
