"""Whether a device's driver is taken, and what is said if it is not."""

from __future__ import annotations

import logging

import pytest
import torch
from pretended_device import CPU, assert_nothing_is_left, pretend

from luce.engine import device_arena, driver_trial
from luce.engine.device import Device
from luce.engine.driver_trial import open_driver
from luce.testing.fake_memory_driver import FakeMemoryDriver


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeMemoryDriver:
    """What a device is opened with."""
    pretend(monkeypatch)
    library = FakeMemoryDriver()
    monkeypatch.setattr(driver_trial, "_loaded", lambda name: name)
    monkeypatch.setattr(driver_trial.ctypes, "CDLL", lambda name: library)
    return library


def test_a_driver_is_tried_out(library: FakeMemoryDriver) -> None:
    driver = open_driver(CPU)
    assert driver is not None
    assert library.calls["MemMap"] == library.calls["MemUnmap"] == 2
    assert_nothing_is_left(library)


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("MemGetAllocationGranularity", 0),
        ("MemAddressReserve", 0),
        *[(call, after) for call in ("MemCreate", "MemMap", "MemSetAccess") for after in (0, 1)],
        *[(call, after) for call in ("MemUnmap", "MemRelease") for after in (0, 1)],
    ],
)
def test_a_driver_that_fails_in_the_trial_is_not_used(
    library: FakeMemoryDriver, call: str, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    library.fail(call, after=after)
    assert open_driver(CPU) is None
    (reason,) = (each.reason for each in caplog.records if hasattr(each, "reason"))
    assert f"cu{call}" in reason


def test_tensors_that_are_copies_are_noticed(
    library: FakeMemoryDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(
        device_arena, "bytes_at", lambda _, nbytes, *__: torch.zeros(nbytes, dtype=torch.uint8)
    )
    assert open_driver(CPU) is None
    assert "as they are" in caplog.records[0].reason  # type: ignore[attr-defined]
    assert_nothing_is_left(library)


def test_where_there_is_no_driver(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert open_driver(Device("cpu", torch.device("cpu"))) is None
    pretend(monkeypatch)
    monkeypatch.setattr(driver_trial, "_loaded", lambda _: None)
    assert open_driver(CPU) is None
    assert "libcuda.so is not loaded" in caplog.records[1].reason  # type: ignore[attr-defined]


def test_a_library_of_this_process_is_found() -> None:
    found = driver_trial._loaded("libc.so")
    assert found is not None
    assert "/libc.so" in found
    assert driver_trial._loaded("libnobody.so") is None
