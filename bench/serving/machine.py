"""Was the machine ours while we measured? CPU time of strangers, from the kernel's counters."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _busy_ticks() -> int:
    """Ticks all processors spent not idle since boot (idle and iowait left out)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(x) for x in fields[:8])
    return user + nice + system + irq + softirq + steal


def _process_ticks(pid: int) -> int:
    """Ticks of one process and of its reaped children."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return 0
    fields = stat.rsplit(")", 1)[1].split()
    return sum(int(fields[i]) for i in (11, 12, 13, 14))


def descendants(pid: int) -> set[int]:
    """`pid` and all processes below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found = {pid}
    grown = True
    while grown:
        more = {p for p, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found


def resident_bytes(pid: int) -> int:
    """Resident set of one process now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes(pid: int) -> int:
    """Largest resident set one process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass
class ForeignCpu:
    """Share of the machine other processes used between `start` and `share`."""

    pids: set[int]
    busy: int = 0
    own: int = 0
    wall: float = 0.0

    @classmethod
    def start(cls, roots: Iterable[int]) -> ForeignCpu:
        """Begin watching; the processes below `roots` are ours."""
        pids = set().union(*(descendants(root) for root in roots))
        own = sum(map(_process_ticks, pids))
        return cls(pids, _busy_ticks(), own, time.monotonic())

    def share(self) -> float:
        """Foreign CPU time as a share of all processors' time; 0.05 is the usual limit."""
        wall_ticks = (time.monotonic() - self.wall) * TICKS_PER_S * (os.cpu_count() or 1)
        own = sum(map(_process_ticks, self.pids)) - self.own
        return max(0.0, (_busy_ticks() - self.busy - own) / max(wall_ticks, 1.0))
