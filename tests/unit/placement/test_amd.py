"""AMD GPUs out of a sysfs of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.placement.amd import AmdDriver
from luce.placement.devices import HOST_POOL

GIB = 1 << 30


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="ascii")


class Sysfs:
    """Builds what the kernel shows of compute nodes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def node(self, number: int, **properties: int) -> None:
        folder = self.root / "class/kfd/kfd/topology/nodes" / str(number)
        write(folder / "properties", "\n".join(f"{k} {v}" for k, v in properties.items()))
        write(folder / "gpu_id", 1000 + number)

    def memory(self, pci: str, **values: int) -> None:
        for name, value in values.items():
            write(self.root / "bus/pci/devices" / pci / f"mem_info_{name}", value)


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    """A processor, a discrete GPU on bus 3 and an integrated one on bus 0xc5."""
    built = Sysfs(tmp_path / "sys")
    built.node(0, cpu_cores_count=16, simd_count=0)
    built.node(1, simd_count=128, gfx_target_version=120001, location_id=0x300, unique_id=0xABC)
    built.memory("0000:03:00.0", vram_total=32 * GIB, vram_used=2 * GIB, gtt_total=60 * GIB)
    write(built.root / "bus/pci/devices/0000:03:00.0/product_name", "Radeon R9700")
    built.node(2, simd_count=80, gfx_target_version=110501, location_id=0xC500)
    built.memory(
        "0000:c5:00.0", vram_total=GIB, vram_used=GIB, gtt_total=96 * GIB, gtt_used=6 * GIB
    )
    return built


def test_discrete_and_integrated(sysfs: Sysfs, host_files: dict[str, Path]) -> None:
    driver = AmdDriver(sysfs.root, {}, **host_files)
    discrete, integrated = driver.devices()
    assert (discrete.id, discrete.arch, discrete.name) == ("hip:0", "gfx1201", "Radeon R9700")
    assert (discrete.uuid, discrete.pci) == ("GPU-0000000000000abc", "0000:03:00.0")
    assert (discrete.total_bytes, discrete.is_unified) == (32 * GIB, False)
    assert driver.free_bytes(discrete.uuid) == 30 * GIB
    assert (integrated.id, integrated.arch, integrated.name) == ("hip:1", "gfx1151", "AMD gfx1151")
    assert (integrated.uuid, integrated.pool) == ("pci:0000:c5:00.0", HOST_POOL)
    assert integrated.total_bytes == 97 * GIB
    # It says 90, the machine has 40.
    assert driver.free_bytes(integrated.uuid) == 40 * GIB


def test_neighbours_are_counted(sysfs: Sysfs, host_files: dict[str, Path]) -> None:
    for pid, nbytes in ((7, GIB), (8, 0)):
        write(sysfs.root / f"class/kfd/kfd/proc/{pid}/vram_1001", nbytes)
    counts = [d.num_foreign_processes for d in AmdDriver(sysfs.root, {}, **host_files).devices()]
    assert counts == [1, 0]


def test_indices_are_those_of_a_worker(sysfs: Sysfs, host_files: dict[str, Path]) -> None:
    devices = AmdDriver(sysfs.root, {"HIP_VISIBLE_DEVICES": "1"}, **host_files).devices()
    assert [(device.id, device.arch) for device in devices] == [("hip:0", "gfx1151")]


def test_a_gpu_that_reports_no_memory_is_unknown(tmp_path: Path) -> None:
    built = Sysfs(tmp_path / "sys")
    built.node(0, simd_count=8, gfx_target_version=90010, location_id=0x300)
    driver = AmdDriver(built.root, {})
    (device,) = driver.devices()
    assert (device.arch, device.total_bytes) == ("gfx90a", 0)
    assert driver.free_bytes(device.uuid) is None


def test_no_kernel_driver(tmp_path: Path) -> None:
    assert AmdDriver(tmp_path, {}).devices() == []


def test_what_our_processes_hold(sysfs: Sysfs, host_files: dict[str, Path]) -> None:
    for pid, nbytes in ((7, GIB), (8, 2 * GIB)):
        write(sysfs.root / f"class/kfd/kfd/proc/{pid}/vram_1001", nbytes)
        write(sysfs.root / f"class/kfd/kfd/proc/{pid}/vram_1002", GIB)
    driver = AmdDriver(sysfs.root, {}, **host_files)
    discrete, integrated = driver.devices()
    assert driver.process_bytes(discrete.uuid, {8, 9}) == {8: 2 * GIB}
    # Of memory that is the machine's, only a part is told.
    assert driver.process_bytes(integrated.uuid, {8}) == {}
