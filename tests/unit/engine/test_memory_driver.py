"""Calls of a driver's library: what they do, and what is undone when one of them fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from pretended_device import CPU, GRANULARITY, assert_nothing_is_left, driver_over

from luce.engine import memory_driver
from luce.engine.memory_driver import DIALECTS, DriverError, DriverFault, MemoryDriver
from luce.testing.fake_memory_driver import (
    OUT_OF_MEMORY,
    FakeMemoryDriver,
    can_be_read,
    host_bytes_at,
)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=str)
def test_addresses_outlive_memory(dialect: memory_driver.Dialect) -> None:
    library = FakeMemoryDriver(dialect=dialect)
    driver = driver_over(library)
    assert driver.granularity == GRANULARITY
    address = driver.reserve(2 * GRANULARITY)
    assert not can_be_read(address)
    for value in (3, 4):
        handle = driver.back(address + GRANULARITY, GRANULARITY)
        assert not can_be_read(address)
        memory = host_bytes_at(address + GRANULARITY, GRANULARITY, None, CPU)
        assert int(memory[7]) == 0xFF
        memory.fill_(value)
        assert int(memory.max()) == value
        driver.strip(address + GRANULARITY, GRANULARITY, handle)
        assert not can_be_read(address + GRANULARITY)
    driver.free(address, 2 * GRANULARITY)
    assert_nothing_is_left(library)


@pytest.mark.parametrize("call", ["MemCreate", "MemMap", "MemSetAccess"])
@pytest.mark.parametrize(
    ("number", "kind"), [(OUT_OF_MEMORY, torch.OutOfMemoryError), (801, DriverError)]
)
def test_a_step_that_fails_leaves_nothing(call: str, number: int, kind: type[RuntimeError]) -> None:
    library = FakeMemoryDriver()
    driver = driver_over(library)
    address = driver.reserve(GRANULARITY)
    library.fail(call, number=number)
    with pytest.raises(kind, match=f"cu{call}: error {number} \\(CUDA_ERROR_"):
        driver.back(address, GRANULARITY)
    assert library.used_bytes == 0
    driver.strip(address, GRANULARITY, driver.back(address, GRANULARITY))
    driver.free(address, GRANULARITY)
    assert_nothing_is_left(library)


@pytest.mark.parametrize("call", ["MemUnmap", "MemRelease", "MemAddressFree"])
def test_what_is_not_taken_back_is_a_fault(call: str) -> None:
    library = FakeMemoryDriver()
    driver = driver_over(library)
    address = driver.reserve(GRANULARITY)
    handle = driver.back(address, GRANULARITY)
    library.fail(call, number=OUT_OF_MEMORY)
    with pytest.raises(DriverFault, match=call):
        driver.strip(address, GRANULARITY, handle)
        driver.free(address, GRANULARITY)


def test_undoing_that_fails_is_a_fault() -> None:
    library = FakeMemoryDriver()
    driver = driver_over(library)
    address = driver.reserve(GRANULARITY)
    library.fail("MemMap")
    library.fail("MemRelease")
    with pytest.raises(DriverFault, match="MemRelease"):
        driver.back(address, GRANULARITY)


def test_a_library_without_the_calls() -> None:
    with pytest.raises(DriverError, match="no virtual memory"):
        MemoryDriver(SimpleNamespace(), DIALECTS["cuda"], 0)
    library = FakeMemoryDriver()
    library.fail("MemGetAllocationGranularity")
    with pytest.raises(DriverError, match="NOT_SUPPORTED"):
        driver_over(library)
