"""NVIDIA GPUs through NVML, which reads memory without a context on the device.

Needs the package nvidia-ml-py (extra `nvidia`); without it, or without a driver, there are none.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from luce.placement.devices import Device
from luce.placement.visibility import CUDA_VARIABLES, visible_order
from luce.sizing.host_memory import available_bytes, total_bytes

log = logging.getLogger(__name__)

_NOT_AVAILABLE = 1 << 62
"""NVML has -1 in 64 bits without a sign for what it does not tell; bindings differ in that."""


class NvidiaDriver:
    """Implements `Driver`.

    Args:
        nvml: the module `pynvml`; None = import it if it is there.
        environment: the variables workers inherit.
    """

    def __init__(self, nvml: Any = None, environment: Mapping[str, str] = os.environ) -> None:
        self._nvml = nvml
        self._environment = environment
        self._handles: dict[str, Any] = {}
        self._unified: set[str] = set()

    def devices(self) -> list[Device]:
        """GPUs, or their partitions, as a worker numbers them."""
        if not self._open():
            return []
        found = [self._device(handle) for handle in self._all_handles()]
        order = visible_order([device.uuid for device in found], CUDA_VARIABLES, self._environment)
        return [
            replace(found[position], id=f"cuda:{index}") for index, position in enumerate(order)
        ]

    def free_bytes(self, uuid: str) -> int | None:
        """What the driver says; of unified memory what the machine has."""
        if uuid in self._unified:
            return available_bytes()
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handles[uuid])
        return int(memory.free) if memory.total else None

    def process_bytes(self, uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        """By the driver's list of processes that compute; some systems keep the bytes to
        themselves."""
        found: dict[int, int] = {}
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handles[uuid]):
            used = process.usedGpuMemory
            if process.pid in pids and isinstance(used, int) and 0 < used < _NOT_AVAILABLE:
                found[process.pid] = found.get(process.pid, 0) + used
        return found

    def _open(self) -> bool:
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ImportError:
                return False
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            log.debug("no NVIDIA driver", extra={"error": str(error)})
            return False
        return True

    def _all_handles(self) -> list[Any]:
        handles = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            handles += self._partitions(handle) or [handle]
        return handles

    def _partitions(self, handle: Any) -> list[Any]:
        """Handles of a partitioned GPU's parts (MIG); none of a whole one."""
        nvml = self._nvml
        try:
            is_partitioned = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        except nvml.NVMLError:
            return []
        parts = []
        if is_partitioned:
            for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                # Slots may be empty.
                with contextlib.suppress(nvml.NVMLError):
                    parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        return parts

    def _device(self, handle: Any) -> Device:
        nvml = self._nvml
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        self._handles[uuid] = handle
        try:
            total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except nvml.NVMLError_NotSupported:
            # A GPU on the processor's own chip has no memory to report.
            self._unified.add(uuid)
            total = total_bytes()
        return Device(
            id="",
            uuid=uuid,
            backend="cuda",
            name=_text(nvml.nvmlDeviceGetName(handle)),
            arch=self._arch(handle),
            pci=self._pci(handle),
            total_bytes=total,
            is_unified=uuid in self._unified,
            num_foreign_processes=self._num_processes(handle),
        )

    def _arch(self, handle: Any) -> str:
        try:
            major, minor = self._nvml.nvmlDeviceGetCudaComputeCapability(handle)
        except self._nvml.NVMLError:
            return ""
        return f"sm_{major}{minor}"

    def _pci(self, handle: Any) -> str | None:
        try:
            return _text(self._nvml.nvmlDeviceGetPciInfo(handle).busId).lower()[-12:]
        except self._nvml.NVMLError:
            return None

    def _num_processes(self, handle: Any) -> int:
        try:
            return len(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except self._nvml.NVMLError:
            return 0


def _text(value: str | bytes) -> str:
    """Older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value
