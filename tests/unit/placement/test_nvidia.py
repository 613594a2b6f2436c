"""NVML as its bindings have it, played by a module of ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from luce.placement.nvidia import NvidiaDriver

GIB = 1 << 30


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    pass


def process(pid: int, used: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


class FakeNvml:
    """Handles are the names in `gpus`: uuid → (total, used), None where memory is not reported."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NotSupported
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, gpus: dict[str, tuple[int, int] | None], **parts: list[str]) -> None:
        self.gpus = gpus
        self.parts = parts
        self.contexts: list[str] = []
        self.has_driver = True
        self.processes: dict[str, list[Any]] = {"GPU-b": [process(1, None)]}

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self._whole())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self._whole()[index]

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle in self.parts:
            return [1, 1]
        raise NotSupported

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index >= len(self.parts[handle]):
            raise NVMLError("Not Found")
        return self.parts[handle][index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"H200"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        memory = self.gpus[handle]
        if memory is None:
            raise NotSupported
        total, used = memory
        return SimpleNamespace(total=total, free=total - used)

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:
        return SimpleNamespace(busId="00000000:0A:00.0")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[object]:
        return self.processes.get(handle, [])

    def _whole(self) -> list[str]:
        inner = {part for parts in self.parts.values() for part in parts}
        return [name for name in self.gpus if name not in inner]


def test_gpus_with_identity_memory_and_neighbours() -> None:
    nvml = FakeNvml({"GPU-a": (80 * GIB, GIB), "GPU-b": (24 * GIB, 2 * GIB)})
    driver = NvidiaDriver(nvml, {})
    first, second = driver.devices()
    assert (first.id, first.uuid, first.name, first.arch) == ("cuda:0", "GPU-a", "H200", "sm_90")
    assert first.pci == "0000:0a:00.0"
    assert (first.total_bytes, first.num_foreign_processes) == (80 * GIB, 0)
    assert (second.id, second.num_foreign_processes, second.is_unified) == ("cuda:1", 1, False)
    assert driver.free_bytes("GPU-a") == 79 * GIB


def test_indices_are_those_of_a_worker() -> None:
    nvml = FakeNvml({"GPU-a": (GIB, 0), "GPU-b": (GIB, 0)})
    devices = NvidiaDriver(nvml, {"CUDA_VISIBLE_DEVICES": "1"}).devices()
    assert [(device.id, device.uuid) for device in devices] == [("cuda:0", "GPU-b")]


def test_partitions_are_devices_of_their_own() -> None:
    gpus: dict[str, tuple[int, int] | None] = {"GPU-a": (80 * GIB, 0)}
    nvml = FakeNvml(
        gpus | {"MIG-1": (40 * GIB, 0), "MIG-2": (20 * GIB, 5 * GIB)},
        **{"GPU-a": ["MIG-1", "MIG-2"]},
    )
    driver = NvidiaDriver(nvml, {})
    assert [(d.id, d.uuid, d.total_bytes) for d in driver.devices()] == [
        ("cuda:0", "MIG-1", 40 * GIB),
        ("cuda:1", "MIG-2", 20 * GIB),
    ]
    assert driver.free_bytes("MIG-2") == 15 * GIB


def test_a_gpu_on_the_processors_chip_has_the_machines_memory() -> None:
    driver = NvidiaDriver(FakeNvml({"GPU-a": None}), {})
    (device,) = driver.devices()
    assert device.is_unified
    free = driver.free_bytes("GPU-a")
    assert free is not None
    assert 0 < free <= device.total_bytes


def test_a_report_of_nothing_is_no_report() -> None:
    driver = NvidiaDriver(FakeNvml({"GPU-a": (0, 0)}), {})
    (device,) = driver.devices()
    assert device.total_bytes == 0
    assert driver.free_bytes("GPU-a") is None


def test_without_driver_or_bindings_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml({"GPU-a": (GIB, 0)})
    nvml.has_driver = False
    assert NvidiaDriver(nvml, {}).devices() == []

    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    assert NvidiaDriver(None, {}).devices() == []


def test_what_our_processes_hold() -> None:
    """Systems that do not tell say None, or -1 as 64 bits without a sign."""
    nvml = FakeNvml({"GPU-a": (80 * GIB, GIB), "GPU-b": (80 * GIB, GIB)})
    nvml.processes["GPU-a"] = [
        process(10, 5 * GIB),
        process(11, 2 * GIB),
        process(11, GIB),
        process(12, None),
        process(13, (1 << 64) - 1),
    ]
    driver = NvidiaDriver(nvml, {})
    driver.devices()
    assert driver.process_bytes("GPU-a", {11, 12, 13, 99}) == {11: 3 * GIB}
    assert driver.process_bytes("GPU-b", {1, 11}) == {}
