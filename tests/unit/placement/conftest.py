"""Machines that are not there: devices in a file, sysfs in a folder, drivers in memory."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def host_files(tmp_path: Path) -> dict[str, Path]:
    """A machine of 64 GiB with 40 GiB free, outside any container."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 67108864 kB\nMemAvailable: 41943040 kB\n", encoding="ascii")
    return {"meminfo": meminfo, "cgroup": tmp_path / "no-cgroup"}
