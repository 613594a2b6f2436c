"""The machine's memory, and a container's share of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from luce.errors import PlacementError
from luce.sizing.host_memory import available_bytes, own_bytes, total_bytes


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       100 kB\nMemAvailable:    80 kB\n", encoding="ascii")
    return path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text, encoding="ascii")


def test_without_a_container(meminfo: Path, tmp_path: Path) -> None:
    assert total_bytes(meminfo, tmp_path) == 100 * 1024
    assert available_bytes(meminfo, tmp_path) == 80 * 1024
    write(tmp_path, max="max\n", current="1000\n")
    assert total_bytes(meminfo, tmp_path) == 100 * 1024
    assert available_bytes(meminfo, tmp_path) == 80 * 1024


def test_a_containers_limit(meminfo: Path, tmp_path: Path) -> None:
    write(tmp_path, max="5000\n", current="1000\n")
    assert total_bytes(meminfo, tmp_path) == 5000
    assert available_bytes(meminfo, tmp_path) == 4000
    write(tmp_path, stat="anon 900\ninactive_file 700\nactive_file 100\n")
    assert available_bytes(meminfo, tmp_path) == 4700
    write(tmp_path, current="500\n")
    assert available_bytes(meminfo, tmp_path) == 5000
    write(tmp_path, current="6000\n")
    assert available_bytes(meminfo, tmp_path) == 0
    write(tmp_path, max=f"{1 << 40}\n")
    assert total_bytes(meminfo, tmp_path) == 100 * 1024
    assert available_bytes(meminfo, tmp_path) == 80 * 1024


def test_a_machine_that_does_not_say(meminfo: Path, tmp_path: Path) -> None:
    meminfo.write_text("nothing\n", encoding="ascii")
    with pytest.raises(PlacementError, match="MemAvailable"):
        available_bytes(meminfo, tmp_path)
    with pytest.raises(PlacementError, match="MemTotal"):
        total_bytes(meminfo, tmp_path)


def test_this_machine() -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_bytes() <= total_bytes() <= physical


def test_memory_of_a_process_without_pages_of_files(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("VmRSS:\t 500 kB\nRssAnon:\t  300 kB\nRssFile: 200 kB\n", "ascii")
    assert own_bytes(status) == 300 * 1024
    assert own_bytes(tmp_path / "missing") == 0
    before = own_bytes()
    more = bytearray(b"x" * (64 << 20))
    assert own_bytes() - before > len(more) // 2
