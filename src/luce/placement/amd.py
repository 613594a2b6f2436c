"""AMD GPUs from sysfs: what the kernel driver says of its compute nodes and their memory.

Source: the amdgpu and amdkfd sysfs interfaces of Linux (kfd_topology.c, amdgpu_vram_mgr.c).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from luce.placement.devices import Device
from luce.placement.visibility import HIP_VARIABLES, visible_order
from luce.sizing.host_memory import CGROUP, MEMINFO, available_bytes

_NODES = "class/kfd/kfd/topology/nodes"
_PROCESSES = "class/kfd/kfd/proc"
_PCI = "bus/pci/devices"
_UNIFIED_ARCHS = frozenset(
    {
        *("gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037"),
        *("gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    }
)
"""Graphics on the processor's chip. Source: the processor table of LLVM's AMDGPU guide."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A compute node: its properties, its id in the driver and its PCI folder."""

    properties: Mapping[str, int]
    gpu_id: str
    folder: Path

    @property
    def pci(self) -> str:
        location, domain = self.properties.get("location_id", 0), self.properties.get("domain", 0)
        return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"

    @property
    def arch(self) -> str:
        version = self.properties.get("gfx_target_version", 0)
        return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"

    @property
    def uuid(self) -> str:
        unique = self.properties.get("unique_id", 0)
        return f"GPU-{unique:016x}" if unique else f"pci:{self.pci}"


class AmdDriver:
    """Implements `Driver`.

    Args:
        sysfs: where it is mounted.
        environment: the variables workers inherit.
    """

    def __init__(
        self,
        sysfs: Path = Path("/sys"),
        environment: Mapping[str, str] = os.environ,
        *,
        meminfo: Path = MEMINFO,
        cgroup: Path = CGROUP,
    ) -> None:
        self._sysfs = sysfs
        self._environment = environment
        self._host = (meminfo, cgroup)
        self._nodes: dict[str, _Node] = {}

    def devices(self) -> list[Device]:
        """GPUs as a worker numbers them."""
        found = []
        for node in self._gpu_nodes():
            self._nodes[node.uuid] = node
            found.append(self._device(node))
        order = visible_order([device.uuid for device in found], HIP_VARIABLES, self._environment)
        return [replace(found[position], id=f"hip:{index}") for index, position in enumerate(order)]

    def free_bytes(self, uuid: str) -> int | None:
        """What is not used; of unified memory no more than the machine has."""
        node = self._nodes[uuid]
        total, used = self._memory(node, "total"), self._memory(node, "used")
        if not total:
            return None
        free = max(0, total - used)
        return min(free, available_bytes(*self._host)) if _is_unified(node) else free

    def process_bytes(self, uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        """By the driver's folder of each process that computes; of unified memory it tells a part
        only."""
        node = self._nodes[uuid]
        if _is_unified(node):
            return {}
        folder = self._sysfs / _PROCESSES
        found = {pid: _number(folder / str(pid) / f"vram_{node.gpu_id}") for pid in pids}
        return {pid: count for pid, count in found.items() if count}

    def _gpu_nodes(self) -> Iterator[_Node]:
        folder = self._sysfs / _NODES
        numbers = [int(path.name) for path in folder.glob("[0-9]*")]
        for number in sorted(numbers):
            node = folder / str(number)
            properties = _properties(node / "properties")
            # Nodes without units to compute on are processors.
            if properties.get("simd_count"):
                found = _Node(properties, _read(node / "gpu_id"), Path())
                yield replace(found, folder=self._sysfs / _PCI / found.pci)

    def _device(self, node: _Node) -> Device:
        return Device(
            id="",
            uuid=node.uuid,
            backend="hip",
            name=_read(node.folder / "product_name") or f"AMD {node.arch}",
            arch=node.arch,
            pci=node.pci,
            total_bytes=self._memory(node, "total"),
            is_unified=_is_unified(node),
            num_foreign_processes=self._num_processes(node),
        )

    def _memory(self, node: _Node, what: str) -> int:
        kinds = ("vram", "gtt") if _is_unified(node) else ("vram",)
        return sum(_number(node.folder / f"mem_info_{kind}_{what}") for kind in kinds)

    def _num_processes(self, node: _Node) -> int:
        files = (self._sysfs / _PROCESSES).glob(f"[0-9]*/vram_{node.gpu_id}")
        return sum(_number(path) > 0 for path in files)


def _is_unified(node: _Node) -> bool:
    return node.arch in _UNIFIED_ARCHS or bool(node.properties.get("cpu_cores_count"))


def _properties(path: Path) -> dict[str, int]:
    words = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal()}


def _read(path: Path) -> str:
    """A small file's text; empty where it is missing or not for us."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _read(path)
    return int(text) if text.isdecimal() else 0
