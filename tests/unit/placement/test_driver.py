"""The probe asks the driver a device came from, and takes no driver's word for granted (B27)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from luce.placement.devices import Device, MemorySample
from luce.placement.driver import DriverProbe


class Stub:
    def __init__(self, uuid: str, free: int | Exception | None) -> None:
        self._device = Device(id=f"cuda:{uuid}", uuid=uuid, backend="cuda", name="x")
        self._free = free

    def process_bytes(self, uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        if isinstance(self._free, Exception):
            raise self._free
        return {pid: 10 * pid for pid in pids}

    def devices(self) -> list[Device]:
        return [self._device]

    def free_bytes(self, uuid: str) -> int | None:
        if isinstance(self._free, Exception):
            raise self._free
        return self._free


def probe(*drivers: Stub) -> DriverProbe:
    return DriverProbe(drivers, clock_ns=lambda: 42)


def test_each_device_is_asked_of_its_driver() -> None:
    both = probe(Stub("1", 100), Stub("2", 200))
    assert [device.uuid for device in both.devices] == ["1", "2"]
    assert both.sample("1") == MemorySample(100, 42)
    assert both.sample("2") == MemorySample(200, 42)


def test_unknown_is_none_and_never_zero() -> None:
    broken = probe(Stub("1", None), Stub("2", OSError("the GPU is lost")))
    assert broken.sample("1") is None
    assert broken.sample("2") is None
    assert broken.sample("3") is None
    assert probe(Stub("1", -5)).sample("1") is None


def test_nothing_free_is_known() -> None:
    assert probe(Stub("1", 0)).sample("1") == MemorySample(0, 42)


def test_processes_are_asked_of_the_devices_driver() -> None:
    both = probe(Stub("1", 100), Stub("2", OSError("the GPU is lost")))
    assert both.process_bytes("1", {3}) == {3: 30}
    assert both.process_bytes("1", ()) == {}
    assert both.process_bytes("2", {3}) == {}
    assert both.process_bytes("9", {3}) == {}
