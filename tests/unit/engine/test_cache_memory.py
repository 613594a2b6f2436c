"""A cache that is zeros again, at the same addresses, each time it comes back."""

from __future__ import annotations

import pytest
import torch
from pretended_device import CPU, GRANULARITY, assert_nothing_is_left, driver_over, pretend

from luce.engine.cache_memory import CacheMemory, cache_memory, fresh_zeros
from luce.engine.kv_tensors import kv_tensors
from luce.engine.memory_driver import DriverError
from luce.engine.state_tensors import StateTensors
from luce.kv.spec import KVSpec, StateSpec
from luce.testing.fake_memory_driver import FakeMemoryDriver, can_be_read

HERE = torch.device("cpu")
STATE = StateSpec(2, 7, 33, 2)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeMemoryDriver:
    pretend(monkeypatch)
    return FakeMemoryDriver()


def make(library: FakeMemoryDriver, *sizes: int) -> CacheMemory:
    memory = cache_memory(driver_over(library), sizes, CPU)
    assert memory is not None
    return memory


def test_tensors_are_zeros_whenever_they_come(library: FakeMemoryDriver) -> None:
    memory = make(library, 6 * 1000, 3 * GRANULARITY)
    first = memory.zeros((30, 100), torch.bfloat16, HERE)
    second = memory.zeros((3, GRANULARITY // 4), torch.int32, HERE)
    addresses = (first.data_ptr(), second.data_ptr())
    assert addresses[1] - addresses[0] == 6144
    assert library.used_bytes == memory.nbytes
    for _ in range(3):
        assert not first.any()
        assert not second.any()
        first.fill_(3.0)
        second.fill_(-1)
        memory.leave()
        assert library.used_bytes == 0
        assert not any(map(can_be_read, addresses))
        memory.return_()
        assert (first.data_ptr(), second.data_ptr()) == addresses
    del memory, first, second
    assert_nothing_is_left(library)


def test_more_than_was_said(library: FakeMemoryDriver) -> None:
    memory = make(library, 100)
    with pytest.raises(AssertionError, match="more is taken"):
        memory.zeros((GRANULARITY + 1,), torch.uint8, HERE)


@pytest.mark.parametrize("kinds", [(None, None), ("q8_0", "q4_0")])
def test_a_cache_and_states_in_it(library: FakeMemoryDriver, kinds: tuple[str, str]) -> None:
    spec = KVSpec("full", 3, 16, 2, 32, 2, *kinds)  # type: ignore[arg-type]
    blocks = 5 * spec.bytes_per_block
    slots = 4
    parts = (slots * 2 * 7 * 2, slots * 2 * 33 * 4)
    memory = make(library, blocks, *parts)
    kv = kv_tensors(spec, 5, torch.bfloat16, HERE, memory.zeros, by_head=True)
    states = StateTensors(STATE, 2, 1, torch.bfloat16, HERE, memory.zeros)
    assert (kv.nbytes, states.nbytes) == (blocks, sum(parts))
    kv.blocks.fill_(1)
    for layer in states.layers:
        layer.conv.fill_(1.0)
        layer.recurrent.fill_(1.0)
    memory.leave()
    memory.return_()
    assert not kv.blocks.any()
    assert not any(layer.conv.any() or layer.recurrent.any() for layer in states.layers)


@pytest.mark.parametrize("call", ["MemCreate", "MemMap", "MemSetAccess"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_return_that_fails(library: FakeMemoryDriver, call: str, after: int) -> None:
    memory = make(library, 4 * GRANULARITY)
    cache = memory.zeros((4 * GRANULARITY,), torch.uint8, HERE)
    cache.fill_(1)
    memory.leave()
    library.fail(call, after=after)
    with pytest.raises(DriverError):
        memory.return_()
    assert library.used_bytes == 0
    memory.return_()
    assert not cache.any()


@pytest.mark.parametrize("call", ["MemAddressReserve", "MemCreate", "MemMap", "MemSetAccess"])
def test_a_driver_that_refuses(
    library: FakeMemoryDriver, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_over(library)
    library.fail(call)
    assert cache_memory(driver, (GRANULARITY,), CPU) is None
    assert f"cu{call}" in caplog.records[0].reason  # type: ignore[attr-defined]
    assert_nothing_is_left(library)


def test_a_device_that_is_full(library: FakeMemoryDriver) -> None:
    library.capacity_bytes = 2 * GRANULARITY
    with pytest.raises(torch.OutOfMemoryError):
        cache_memory(driver_over(library), (3 * GRANULARITY,), CPU)
    assert library.used_bytes == 0


def test_without_a_driver_or_anything_to_keep(library: FakeMemoryDriver) -> None:
    assert cache_memory(None, (5,), CPU) is None
    assert cache_memory(driver_over(library), (0,), CPU) is None
    assert library.reserved_bytes == 0


@pytest.mark.parametrize("rows", [0, 1, 5, 3 << 19])
def test_zeros_of_a_cpu(rows: int) -> None:
    memory = fresh_zeros((rows, 4), torch.float32, HERE)
    assert memory.shape == (rows, 4)
    assert not memory.any()
    memory += 2
    assert memory.sum() == rows * 8


def test_a_large_cache_begins_with_a_huge_page() -> None:
    for _ in range(3):
        assert fresh_zeros((5, 1 << 20), torch.float16, HERE).data_ptr() % (2 << 20) == 0
