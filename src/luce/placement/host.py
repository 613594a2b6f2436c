"""The CPU and the machine's own memory, as `cpu:N`: any number of parts of one machine."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

from luce.placement.devices import Device
from luce.sizing.host_memory import CGROUP, MEMINFO, available_bytes, total_bytes

_CPUINFO = Path("/proc/cpuinfo")


class HostDriver:
    """Implements `Driver` from /proc.

    Args:
        parts: the N of each `cpu:N` somebody named; 0 is always there.
    """

    def __init__(
        self,
        parts: Iterable[int] = (),
        *,
        meminfo: Path = MEMINFO,
        cgroup: Path = CGROUP,
        cpuinfo: Path = _CPUINFO,
    ) -> None:
        self._parts = sorted({0, *parts})
        self._meminfo = meminfo
        self._cgroup = cgroup
        self._cpuinfo = cpuinfo

    def devices(self) -> list[Device]:
        """One device for each part, all of the host's pool."""
        total, name = total_bytes(self._meminfo, self._cgroup), self._name()
        return [
            Device(
                id=f"cpu:{part}",
                uuid=f"cpu:{part}",
                backend="cpu",
                name=name,
                arch=platform.machine(),
                total_bytes=total,
                is_unified=True,
            )
            for part in self._parts
        ]

    def free_bytes(self, uuid: str) -> int:
        """The machine's, whichever part is asked for."""
        return available_bytes(self._meminfo, self._cgroup)

    def _name(self) -> str:
        try:
            lines = self._cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return next(names, "") or "CPU"
