"""The machine's own memory: what there is and what is free, a container's limit heeded.

Source: proc_meminfo(5), proc_pid_status(5); cgroup v2 memory controller.
"""

from __future__ import annotations

from pathlib import Path

from luce.errors import PlacementError

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def total_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Memory this process could ever have.

    Raises:
        PlacementError: the machine does not say.
    """
    total = _meminfo(meminfo, "MemTotal")
    limit = _cgroup_number(cgroup / "memory.max")
    return total if limit is None else min(total, limit)


def available_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Memory a new model may take; pages of files count as free.

    Raises:
        PlacementError: the machine does not say.
    """
    available = _meminfo(meminfo, "MemAvailable")
    left = _cgroup_available(cgroup)
    return available if left is None else min(available, left)


def own_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Memory of this process that is no file's; 0 where the system does not say."""
    try:
        lines = status.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def _meminfo(path: Path, field: str) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise PlacementError(f"{path} has no {field} line")


def _cgroup_available(folder: Path) -> int | None:
    """What a container's limit leaves, or None where there is no limit.

    Pages of files nobody used lately count as used there, but go as soon as memory is wanted.
    """
    limit = _cgroup_number(folder / "memory.max")
    used = _cgroup_number(folder / "memory.current")
    if limit is None or used is None:
        return None
    held = max(0, used - _inactive_file(folder / "memory.stat"))
    return max(0, limit - held)


def _cgroup_number(path: Path) -> int | None:
    """The number in a file; None if there is no such file, or it says "max"."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if text == "max" else int(text)


def _inactive_file(path: Path) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
