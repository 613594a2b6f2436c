"""Host memory that passes for a device's, addresses and all."""

from __future__ import annotations

import pytest
import torch

from luce.engine.device import Device, SideStream
from luce.engine.memory_driver import MemoryDriver
from luce.testing.fake_memory_driver import FakeMemoryDriver, host_bytes_at

CPU = Device("cuda:0", torch.device("cpu"))
"""What passes for a GPU: PyTorch computes on a CPU."""
GRANULARITY = 1 << 16


def pretend(monkeypatch: pytest.MonkeyPatch, segment_bytes: int = GRANULARITY) -> None:
    """Tensors are over the fake driver's memory; nothing asks PyTorch for a GPU."""
    monkeypatch.setattr("luce.engine.device_arena.bytes_at", host_bytes_at)
    monkeypatch.setattr("luce.engine.device_arena.SEGMENT_BYTES", segment_bytes)
    monkeypatch.setattr(Device, "is_cpu", property(lambda _: False))
    for module in ("device_arena", "driver_trial", "parked_weights", "placed_weights"):
        monkeypatch.setattr(f"luce.engine.{module}.synchronize", lambda _: None)
    for module in ("device_arena", "placed_weights", "assembly", "engine"):
        monkeypatch.setattr(f"luce.engine.{module}.release_cached", lambda _: None)
    for module in ("parked_weights", "placed_weights"):
        monkeypatch.setattr(f"luce.engine.{module}.host_buffer", host_buffer)
    monkeypatch.setattr("luce.engine.placed_weights.SideStream", _NoStream)
    for module in ("placed_weights", "assembly", "engine"):
        monkeypatch.setattr(f"luce.engine.{module}.free_bytes", lambda _: 1 << 40)
    monkeypatch.setattr("luce.engine.eviction.held_bytes", lambda _: 0)
    monkeypatch.setattr("luce.engine.engine.release_all", lambda _: None)
    monkeypatch.setattr("luce.engine.engine.taken_peak_bytes", lambda _: 0)


class _NoStream(SideStream):
    """Everything is done at once."""

    def __init__(self, device: Device) -> None:
        self._stream = None


def host_buffer(nbytes: int, device: Device) -> torch.Tensor:
    """Memory that holds anything."""
    return torch.full((nbytes,), 0xEE, dtype=torch.uint8)


def driver_over(library: FakeMemoryDriver) -> MemoryDriver:
    """The driver of that library."""
    return MemoryDriver(library, library.dialect, 0)


def assert_nothing_is_left(library: FakeMemoryDriver) -> None:
    """All was given back, in a right order."""
    assert library.wrong == []
    assert library.used_bytes == 0
    assert library.reserved_bytes == 0
