"""The CPU and the machine's own memory, as `cpu:N`: any number of parts of one machine."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from luce.placement.devices import Device
from luce.sizing.host_memory import CGROUP, MEMINFO, available_bytes, own_bytes, total_bytes

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
        proc: Path = Path("/proc"),
    ) -> None:
        self._parts = sorted({0, *parts})
        self._meminfo = meminfo
        self._cgroup = cgroup
        self._cpuinfo = cpuinfo
        self._proc = proc

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

    def process_bytes(self, uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        """What these processes hold that is no file's; the machine's, so told of `cpu:0` alone."""
        if uuid != "cpu:0":
            return {}
        found = {pid: own_bytes(self._proc / str(pid) / "status") for pid in pids}
        return {pid: count for pid, count in found.items() if count}

    def _name(self) -> str:
        try:
            lines = self._cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return next(names, "") or "CPU"
