"""The machine as placement has it: devices under budgets, and what may be taken of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.errors import UsageError
from luce.placement.discovery import Machine, drivers, look_around

GIB = 1 << 30


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "devices.toml"
    path.write_text(
        "[[device]]\nid = 'cuda:0'\nuuid = 'GPU-1'\ntotal_mib = 24576\nfree_mib = 20480\n"
        "[[device]]\nid = 'cuda:1'\n"
        "[[device]]\nid = 'cpu:0'\ntotal_mib = 65536\nfree_mib = 40960\n",
        encoding="ascii",
    )
    return path


def machine(path: Path, **budgets: int) -> Machine:
    named = {device.replace("_", ":"): nbytes for device, nbytes in budgets.items()}
    return look_around(drivers(path, [1]), named)


def test_free_memory_leaves_a_margin(inventory: Path) -> None:
    found = machine(inventory)
    gpu = found.device("cuda", 0)
    assert (gpu.uuid, found.free_bytes(gpu)) == ("GPU-1", 20 * GIB - gpu.margin_bytes)


def test_memory_nobody_knows(inventory: Path) -> None:
    found = machine(inventory)
    assert found.free_bytes(found.device("cuda", 1)) is None
    missing = found.device("hip", 7)
    assert (missing.id, missing.total_bytes) == ("hip:7", 0)
    assert found.free_bytes(missing) is None


def test_a_budget_is_all_there_is(inventory: Path) -> None:
    found = machine(inventory, cpu_0=GIB, cpu_1=100 * GIB)
    small, large = found.device("cpu", 0), found.device("cpu", 1)
    assert (small.total_bytes, small.pool, found.free_bytes(small)) == (GIB, "cpu:0", GIB)
    # Declaring it does not make it so.
    assert found.free_bytes(large) == 40 * GIB


def test_a_budget_of_a_device_that_is_not_there(inventory: Path) -> None:
    with pytest.raises(UsageError, match=r"--device-memory hip:0: no such device; .* cuda:0"):
        machine(inventory, hip_0=GIB)


def test_this_machine_has_a_cpu_and_nobody_needs_torch_for_it() -> None:
    found = look_around(drivers(), {})
    cpu = found.device("cpu", 0)
    free = found.free_bytes(cpu)
    assert free is not None
    assert 0 < free < cpu.total_bytes
