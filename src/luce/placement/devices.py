"""Devices as placement sees them: who they are and how much memory they have.

Identity is the UUID (or the PCI address where a driver gives none): indices change with the
visibility variables of each process, identities do not. Nothing here talks to a driver, and
nothing in this package ever creates a compute context: that alone takes hundreds of MiB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Backend = Literal["cpu", "cuda", "hip"]

HOST_POOL = "host"
"""The pool of the machine's own memory."""

_MIB = 1 << 20
_LEAST_MARGIN_BYTES = 512 * _MIB
_MARGIN_PERCENT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device models can be placed on.

    Attributes:
        id: as people write it and workers are told: "cuda:0", "hip:1", "cpu:0".
        uuid: what it is called in plans and ledgers; the same whatever its index. The driver's
            UUID, else "pci:" and the PCI address, and for parts of the CPU its id.
        backend: which runtime computes on it.
        name: for people.
        arch: "sm_90", "gfx1201", "x86_64"; "" where nobody says.
        pci: PCI address "0000:03:00.0", None for what has none.
        total_bytes: memory it has, or was declared to have; 0 = nobody says: what is placed there
            is unknown.
        is_unified: its memory is the machine's.
        is_declared: `total_bytes` is a budget somebody wrote (`--device-memory`): no share of it
            is kept free, and the driver's free memory may exceed it.
        num_foreign_processes: processes that computed on it when it was looked at.
    """

    id: str
    uuid: str
    backend: Backend
    name: str
    arch: str = ""
    pci: str | None = None
    total_bytes: int = 0
    is_unified: bool = False
    is_declared: bool = False
    num_foreign_processes: int = 0

    @property
    def pool(self) -> str:
        """Devices of one pool draw on the same bytes: what is placed on them is added up."""
        return HOST_POOL if self.is_unified and not self.is_declared else self.uuid

    @property
    def margin_bytes(self) -> int:
        """What is left free on it: 512 MiB, or 3 % if that is more; nothing of a declared budget.

        Source: spec swap-and-admission B3.
        """
        if self.is_declared:
            return 0
        return max(_LEAST_MARGIN_BYTES, self.total_bytes * _MARGIN_PERCENT // 100)


@dataclass(frozen=True, slots=True)
class MemorySample:
    """What a driver said.

    Attributes:
        free_bytes: free at that time, whoever has taken the rest.
        at_ns: monotonic time.
    """

    free_bytes: int
    at_ns: int


class Probe(Protocol):
    """Asks drivers for free memory. Blocking, and slow at times: call it in a thread."""

    def sample(self, device_uuid: str) -> MemorySample | None:
        """Free memory of a device now; None if it cannot be known (0/0, gone, an error)."""


class Attribution(Protocol):
    """Asks drivers what single processes hold. Blocking, like `Probe`."""

    def process_bytes(self, device_uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        """Bytes of a device that each of these processes holds; without those nobody can say of.

        A driver that sees another container's process ids than ours knows none of them.
        """


class Inventory:
    """The devices of a machine, in order: GPUs by backend and index, then parts of the CPU.

    Args:
        devices: with ids and UUIDs that are all different.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices = tuple(devices)
        self._by_id = {device.id: device for device in self._devices}
        self._by_uuid = {device.uuid: device for device in self._devices}

    def __iter__(self) -> Iterator[Device]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def by_id(self, device_id: str) -> Device | None:
        """The device people call so; `cpu` is short for `cpu:0`."""
        return self._by_id.get("cpu:0" if device_id == "cpu" else device_id)

    def by_uuid(self, uuid: str) -> Device | None:
        """The device of this identity."""
        return self._by_uuid.get(uuid)

    @property
    def gpus(self) -> tuple[Device, ...]:
        """All but the parts of the CPU."""
        return tuple(device for device in self._devices if device.backend != "cpu")
