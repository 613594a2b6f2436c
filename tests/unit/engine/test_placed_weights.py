"""Weights that come back to the addresses they left, in host memory that passes for a device's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from pretended_device import CPU, GRANULARITY, assert_nothing_is_left, driver_over, pretend

from luce.engine import eviction, placed_weights
from luce.engine.device_arena import ALIGNMENT
from luce.engine.engine import Engine
from luce.engine.memory_driver import DriverError, DriverFault
from luce.engine.options import EngineOptions
from luce.engine.placed_weights import PlacedWeights, place_weights
from luce.engine.reached_tensors import reached_tensors
from luce.errors import PlacementError
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.testing.fake_memory_driver import FakeMemoryDriver, can_be_read
from luce.testing.tiny_models import tiny_llama, tiny_qwen3, tiny_qwen35, tiny_qwen35moe

BACKING = ("MemCreate", "MemMap", "MemSetAccess")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeMemoryDriver:
    pretend(monkeypatch)
    return FakeMemoryDriver()


@dataclass(frozen=True, slots=True)
class Holder:
    parts: tuple[object, ...]


# Only objects of our package are looked into.
Holder.__module__ = "luce.tests"


def tensors() -> list[torch.Tensor]:
    """Of several types, tied and viewed, more than a segment of them."""
    table = torch.randn(70, 512)
    return [
        table,
        table.T,
        table[3, 5:17],
        table.view(torch.uint8),
        torch.randn(5, 3).to(torch.bfloat16),
        torch.arange(40_000),
        torch.randn(9).to(torch.float8_e4m3fn),
        torch.tensor(True),
    ]


def placed(each: list[torch.Tensor], library: FakeMemoryDriver) -> PlacedWeights:
    root = Holder((*each[:3], partial(print, each[3]), lambda: each[4:]))
    return PlacedWeights([root], CPU, driver_over(library))


def come_back(weights: PlacedWeights) -> None:
    with weights.coming_back():
        pass


def as_bytes(each: list[torch.Tensor]) -> list[bytes]:
    return [tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in each]


def test_all_of_them_are_moved_and_stay_what_they_were(library: FakeMemoryDriver) -> None:
    each = tensors()
    before = as_bytes(each)
    weights = placed(each, library)
    assert as_bytes(each) == before
    storages = {tensor.untyped_storage().data_ptr() for tensor in each}
    assert len(storages) == 1
    assert weights.device_bytes == weights.nbytes == library.used_bytes
    assert all(each[i].data_ptr() % ALIGNMENT == 0 for i in (0, 4, 5, 6, 7))
    each[0][3, 5] = 7.0
    assert float(each[2][0]) == float(each[1][5, 3]) == 7.0


def test_they_come_back_to_where_they_were(library: FakeMemoryDriver) -> None:
    each = tensors()
    before, addresses = as_bytes(each), [tensor.data_ptr() for tensor in each]
    weights = placed(each, library)
    assert [tensor.data_ptr() for tensor in each] != addresses
    addresses = [tensor.data_ptr() for tensor in each]
    assert weights.parked_bytes == 0
    weights.park()
    assert weights.parked_bytes == weights.nbytes > 4 * GRANULARITY
    copy = weights._parked[0]
    for _ in range(3):
        weights.leave_device()
        weights.leave_device()
        assert library.used_bytes == weights.device_bytes == 0
        assert not any(map(can_be_read, addresses))
        come_back(weights)
        come_back(weights)
        assert as_bytes(each) == before
        assert [tensor.data_ptr() for tensor in each] == addresses
        weights.park()
        assert weights._parked[0] is copy
    weights.close()
    assert library.used_bytes == weights.parked_bytes == 0
    del weights
    each.clear()
    assert_nothing_is_left(library)


@pytest.mark.parametrize("call", BACKING)
@pytest.mark.parametrize("after", [0, 2, 4])
def test_weights_that_cannot_be_moved_stay(
    library: FakeMemoryDriver, call: str, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    each = tensors()
    before = as_bytes(each)
    library.fail(call, after=after)
    assert place_weights([each], CPU, driver_over(library)) is None
    assert f"cu{call}" in caplog.records[0].reason  # type: ignore[attr-defined]
    assert as_bytes(each) == before
    # Nothing is over the range any more, and what was shared still is.
    assert_nothing_is_left(library)
    each[0][3, 5] = 7.0
    assert float(each[2][0]) == float(each[1][5, 3]) == 7.0


@pytest.mark.parametrize("fails", [False, True])
def test_who_goes_back_makes_room_for_the_next(
    library: FakeMemoryDriver, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Going back needs no more beside the weights than moving did; without that, none serve."""
    each = [torch.randn(128, 128) for _ in range(5)]
    before, taken = as_bytes(each), []
    bind = placed_weights._Group.bind

    def watched(group: object, storage: torch.UntypedStorage, start: int) -> None:
        taken.append(library.used_bytes // GRANULARITY)
        if fails and len(taken) == 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        bind(group, storage, start)  # type: ignore[arg-type]

    monkeypatch.setattr(placed_weights._Group, "bind", watched)
    library.fail("MemCreate", after=4)
    if fails:
        with pytest.raises(PlacementError, match="cannot go back: CUDA out of memory"):
            place_weights([each], CPU, driver_over(library))
        return
    assert place_weights([each], CPU, driver_over(library)) is None
    assert taken == [1, 2, 3, 4, 4, 3, 2, 1]
    assert as_bytes(each) == before
    assert_nothing_is_left(library)


def test_addresses_that_cannot_be_had(
    library: FakeMemoryDriver, caplog: pytest.LogCaptureFixture
) -> None:
    library.fail("MemAddressReserve")
    each = tensors()
    addresses = [tensor.data_ptr() for tensor in each]
    assert place_weights([each], CPU, driver_over(library)) is None
    assert [tensor.data_ptr() for tensor in each] == addresses


def test_moving_needs_some_room(
    library: FakeMemoryDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placed_weights, "free_bytes", lambda _: 1 << 30)
    each = tensors()
    addresses = [tensor.data_ptr() for tensor in each]
    assert place_weights([each], CPU, driver_over(library)) is None
    assert "1.0 GiB free" in caplog.records[0].reason  # type: ignore[attr-defined]
    assert [tensor.data_ptr() for tensor in each] == addresses
    assert library.used_bytes == 0


@pytest.mark.parametrize("call", BACKING)
@pytest.mark.parametrize("after", [0, 2, 4])
def test_a_return_that_fails_can_be_tried_again(
    library: FakeMemoryDriver, call: str, after: int
) -> None:
    each = tensors()
    before = as_bytes(each)
    weights = placed(each, library)
    weights.park()
    weights.leave_device()
    library.fail(call, after=after)
    with pytest.raises(DriverError):
        come_back(weights)
    assert library.used_bytes == weights.device_bytes == 0
    come_back(weights)
    assert as_bytes(each) == before


def test_what_fails_meanwhile_sends_weights_back(library: FakeMemoryDriver) -> None:
    each = tensors()
    before = as_bytes(each)
    weights = placed(each, library)
    weights.park()
    weights.leave_device()
    with pytest.raises(PlacementError), weights.coming_back():
        assert weights.device_bytes == weights.nbytes
        raise PlacementError("no room for the cache")
    assert library.used_bytes == 0
    come_back(weights)
    assert as_bytes(each) == before


def test_a_copy_that_fails_takes_no_memory(
    library: FakeMemoryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = placed(tensors(), library)
    good = placed_weights.host_buffer
    left = iter(range(2))

    def exhausted(nbytes: int, device: object) -> torch.Tensor:
        if next(left, None) is None:
            raise RuntimeError("out of memory")
        return good(nbytes, CPU)

    monkeypatch.setattr(placed_weights, "host_buffer", exhausted)
    with pytest.raises(RuntimeError):
        weights.park()
    assert weights.parked_bytes == 0
    assert weights.device_bytes == weights.nbytes


def test_memory_is_given_back_while_weights_move(
    library: FakeMemoryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never twice the weights."""
    seen: list[int] = []
    monkeypatch.setattr(placed_weights, "_RELEASE_BYTES", 100_000)
    monkeypatch.setattr(placed_weights, "release_cached", lambda _: seen.append(library.used_bytes))
    placed([torch.randn(100, 128) for _ in range(8)], library)
    assert seen[0] < seen[1] < seen[2]


# --- a model's ------------------------------------------------------------------------------

PROMPT = tuple(range(5, 25))


def load(path: Path) -> Engine:
    # Decoded weights are tensors of PyTorch's own memory, as they are on a GPU.
    wanted = EngineOptions(
        path=path, threads=1, cpu_exact=True, dtype="bfloat16", num_checkpoints=2
    )
    return Engine.load(wanted, lambda *_: None)


def first_token(engine: Engine) -> int:
    start = RowStart(0, SamplingParams(max_tokens=10), 0, PROMPT, len(PROMPT))
    item = ScheduledSequence(0, 0, PROMPT, (3, 4), sample=True)
    return engine.step(StepPlan(1, (start,), (item,))).result().token_ids[0]


@pytest.mark.parametrize("family", [tiny_llama, tiny_qwen3, tiny_qwen35, tiny_qwen35moe])
def test_no_tensor_of_a_model_is_overlooked(
    tmp_path: Path, family: Callable[..., Path], library: FakeMemoryDriver
) -> None:
    """What was left behind is spoilt, so whoever still looks there is found out."""
    engine = load(family(tmp_path))
    before = first_token(engine)
    built = engine._weights.built
    old = {
        each.untyped_storage().data_ptr(): each.untyped_storage()
        for each in reached_tensors([built], torch.device("cpu"))
    }
    weights = PlacedWeights([built], CPU, driver_over(library))
    for storage in old.values():
        spoilt = torch.empty(0, dtype=torch.uint8)
        spoilt.set_(storage)
        spoilt.fill_(0xFF)
    assert first_token(engine) == before
    weights.park()
    weights.leave_device()
    come_back(weights)
    assert first_token(engine) == before


def nothing() -> None:
    """There is nothing to save."""


@pytest.fixture
def held(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Engine, FakeMemoryDriver]:
    """An engine whose weights have a place, without captured steps."""
    path = tiny_llama(tmp_path)
    engine = load(path)
    library: FakeMemoryDriver = request.getfixturevalue("library")
    built = engine._weights.built
    engine._weights = eviction.HeldWeights(built, CPU, driver_over(library))
    assert engine._weights.placing_driver is not None
    return engine, library


@pytest.mark.parametrize("level", ["warm", "host", "cold"])
def test_the_same_token_behind_every_level(
    held: tuple[Engine, FakeMemoryDriver], level: eviction.EvictionLevel
) -> None:
    engine, library = held
    before = first_token(engine)
    for _ in range(2):
        kept = engine.evict(level, nothing)
        nbytes = engine.resolved.weights_bytes
        assert kept.device_bytes == library.used_bytes
        assert (kept.device_bytes >= nbytes) == (level == "warm")
        assert (kept.host_bytes >= nbytes) == (level == "host")
        engine.reinstate()
        assert first_token(engine) == before
    assert engine._weights.placing_driver is not None
    engine.close()
    assert library.used_bytes == 0


@pytest.mark.parametrize("number", [2, 801])
@pytest.mark.parametrize("call", BACKING)
def test_a_device_without_room_for_the_return(
    held: tuple[Engine, FakeMemoryDriver], call: str, number: int
) -> None:
    engine, library = held
    before = first_token(engine)
    engine.evict("host", nothing)
    library.fail(call, number=number)
    if number == 2:
        # A lack of memory is tried twice.
        library.capacity_bytes = 0
    with pytest.raises(PlacementError, match=r"ran out of memory|gave no memory"):
        engine.reinstate()
    assert library.used_bytes == 0
    library.capacity_bytes = 1 << 40
    engine.reinstate()
    assert first_token(engine) == before
    assert library.wrong == []


def test_a_driver_that_takes_nothing_back_ends_the_worker(
    held: tuple[Engine, FakeMemoryDriver],
) -> None:
    engine, library = held
    library.fail("MemUnmap")
    with pytest.raises(DriverFault):
        engine.evict("host", nothing)


def test_a_level_less_drops_the_place(held: tuple[Engine, FakeMemoryDriver]) -> None:
    engine, library = held
    before = first_token(engine)
    engine.evict("warm", nothing)
    engine.evict("host", nothing)
    assert library.used_bytes == 0
    engine.evict("cold", nothing)
    assert engine._weights.placing_driver is None
    engine.reinstate()
    assert first_token(engine) == before
    assert library.used_bytes >= engine.resolved.weights_bytes
