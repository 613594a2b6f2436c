from __future__ import annotations

from pathlib import Path

import pytest

from luce.observability import memory


def test_a_large_allocation_shows() -> None:
    before = memory.resident_bytes()
    if before is None:
        pytest.skip("no /proc here")
    ballast = bytearray(64 * 2**20)
    ballast[:: 2**12] = b"x" * len(ballast[:: 2**12])
    after, peak = memory.resident_bytes(), memory.peak_resident_bytes()
    assert after is not None
    assert peak is not None
    assert after - before > 48 * 2**20
    assert peak >= after - 2**20
    del ballast


def test_without_proc_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    assert memory.resident_bytes() is None
    assert memory.peak_resident_bytes() is None


def test_kib_become_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmHWM:\t    20 kB\nVmRSS:\t    10 kB\n")
    monkeypatch.setattr(memory, "_STATUS", status)
    assert memory.resident_bytes() == 10 * 1024
    assert memory.peak_resident_bytes() == 20 * 1024
