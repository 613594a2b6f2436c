"""Memory that comes and goes behind tensors."""

from __future__ import annotations

import logging
import weakref

import pytest
import torch
from pretended_device import CPU, GRANULARITY, assert_nothing_is_left, driver_over, pretend

from luce.engine import device_arena
from luce.engine.device_arena import DeviceArena, aligned, bytes_at, log_steps_go
from luce.engine.memory_driver import DriverError, DriverFault
from luce.testing.fake_memory_driver import FakeMemoryDriver, can_be_read


@pytest.fixture(autouse=True)
def _pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 2 * GRANULARITY)


def make(library: FakeMemoryDriver, granules: int = 5) -> DeviceArena:
    return DeviceArena(driver_over(library), granules * GRANULARITY - 5, CPU)


def test_piece_by_piece() -> None:
    library = FakeMemoryDriver()
    arena = make(library)
    assert arena.nbytes == 5 * GRANULARITY
    pieces = []
    while (piece := arena.extend()) is not None:
        arena.bytes[piece].fill_(len(pieces))
        pieces.append(piece)
    assert pieces == arena.pieces
    assert [piece.stop - piece.start for piece in pieces] == [131072, 131072, 65536]
    assert arena.mapped_bytes == library.used_bytes == arena.nbytes
    assert [int(arena.bytes[piece.start]) for piece in pieces] == [0, 1, 2]


def test_tensors_stay_while_memory_goes() -> None:
    library = FakeMemoryDriver()
    arena = make(library)
    arena.fill_up()
    whole = arena.bytes
    part = whole[GRANULARITY:].view(torch.bfloat16).view(-1, 4)
    part.fill_(2.5)
    address = part.data_ptr()
    arena.empty()
    assert library.used_bytes == arena.mapped_bytes == 0
    assert not can_be_read(address)
    arena.empty()
    arena.fill_up()
    assert arena.bytes is whole
    assert part.data_ptr() == address
    assert bool(part.isnan().all())
    part.fill_(1.0)
    assert float(part.sum()) == part.numel()


def test_the_end_can_be_given_back_alone() -> None:
    library = FakeMemoryDriver()
    arena = make(library)
    arena.fill_up()
    for nbytes, left in ((5, 5), (4, 4), (3, 4), (2, 2), (1, 2)):
        arena.shrink(nbytes * GRANULARITY)
        assert library.used_bytes == arena.mapped_bytes == left * GRANULARITY
    arena.shrink(0)
    assert (library.used_bytes, library.wrong) == (0, [])


def test_memory_and_addresses_go_with_the_last_tensor() -> None:
    library = FakeMemoryDriver()
    arena = make(library)
    arena.fill_up()
    view = arena.bytes[3:9]
    gone = weakref.ref(arena)
    del arena
    assert gone() is None
    view.fill_(1)
    assert library.used_bytes == 5 * GRANULARITY
    del view
    assert_nothing_is_left(library)


def test_an_empty_one_leaves_addresses_only() -> None:
    library = FakeMemoryDriver()
    arena = make(library)
    arena.fill_up()
    view = arena.bytes[3:9]
    arena.empty()
    del arena
    assert (library.used_bytes, library.reserved_bytes) == (0, 5 * GRANULARITY)
    del view
    assert_nothing_is_left(library)


@pytest.mark.parametrize("call", ["MemCreate", "MemMap", "MemSetAccess"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_nothing_stays_of_half_a_range(call: str, after: int) -> None:
    library = FakeMemoryDriver()
    arena = make(library)
    arena.fill_up()
    whole = arena.bytes
    arena.empty()
    library.fail(call, after=after)
    with pytest.raises(DriverError):
        arena.fill_up()
    assert library.used_bytes == 0
    arena.fill_up()
    whole.zero_()
    del arena, whole
    assert_nothing_is_left(library)


def test_what_pytorch_keeps_may_be_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeMemoryDriver(capacity_bytes=4 * GRANULARITY)
    arena = make(library)
    asked: list[int] = []

    def release(_: object) -> None:
        asked.append(library.used_bytes)
        library.capacity_bytes = 8 * GRANULARITY

    monkeypatch.setattr(device_arena, "release_cached", release)
    arena.fill_up()
    assert asked == [4 * GRANULARITY]


def test_a_device_that_is_full() -> None:
    library = FakeMemoryDriver(capacity_bytes=4 * GRANULARITY)
    arena = make(library)
    with pytest.raises(torch.OutOfMemoryError, match="MemCreate"):
        arena.fill_up()
    assert library.used_bytes == 0


def test_a_driver_that_takes_nothing_back() -> None:
    library = FakeMemoryDriver()
    arena = make(library)
    arena.fill_up()
    library.fail("MemUnmap", after=1)
    with pytest.raises(DriverFault):
        arena.empty()


def test_nobody_hears_of_a_fault_but_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    library = FakeMemoryDriver()
    arena = make(library)
    library.fail("MemAddressFree")
    del arena
    assert "MemAddressFree" in caplog.records[0].error  # type: ignore[attr-defined]


def test_no_addresses() -> None:
    library = FakeMemoryDriver()
    library.fail("MemAddressReserve")
    with pytest.raises(DriverError):
        make(library)
    assert_nothing_is_left(library)


def test_what_pytorch_is_told_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    owner = object()

    def as_tensor(memory: object, device: torch.device) -> None:
        told.append((memory.__cuda_array_interface__, memory.owner, device))  # type: ignore[attr-defined]

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    bytes_at(1 << 33, 4096, owner, CPU)
    facts = {"version": 2, "shape": (4096,), "typestr": "|u1", "data": (1 << 33, False)}
    assert told == [(facts, owner, CPU.torch)]


def test_tensors_begin_where_kernels_expect() -> None:
    assert [aligned(size) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]


@pytest.mark.parametrize(("said", "reason"), [("no room\nat all", "no room"), ("", "RuntimeError")])
def test_the_reason_is_one_line(said: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    log_steps_go(CPU, RuntimeError(said))
    assert [each.reason for each in caplog.records] == [reason]  # type: ignore[attr-defined]
