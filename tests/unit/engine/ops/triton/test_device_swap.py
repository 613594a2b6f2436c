"""A whole engine that takes turns: its captured steps outlive its memory.

Kernels run in the interpreter, over host memory that passes for a device's. A captured step is
what was run to capture it, and the addresses it saw: a replay at other addresses is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from pretended_device import GRANULARITY, driver_over, pretend

from luce.engine import assembly, device_executor
from luce.engine import engine as engine_module
from luce.engine.engine import Engine
from luce.engine.eviction import EvictionLevel
from luce.engine.options import EngineOptions
from luce.engine.reached_tensors import reached_tensors
from luce.errors import InternalError, PlacementError
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.sizing.steps import GRAPH_BYTES
from luce.testing.fake_memory_driver import FakeMemoryDriver, can_be_read
from luce.testing.tiny_models import tiny_llama, tiny_qwen35

PROMPT = (7, 3, 9, 11, 4, 6)
BLOCKS = (2, 3)


@dataclass
class Capturing:
    """What passes for capturing."""

    count: int = 0
    replays: int = 0
    failures: int = 0
    """How many of the next ones find no memory."""

    def __call__(
        self, work: Callable[[], torch.Tensor], pool: object
    ) -> tuple[Recording, torch.Tensor]:
        self.count += 1
        if self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Recording(self, work, result := work(), _addresses(work)), result


@dataclass
class Recording:
    capturing: Capturing
    work: Callable[[], torch.Tensor]
    result: torch.Tensor
    addresses: list[int]

    def replay(self) -> None:
        self.capturing.replays += 1
        assert _addresses(self.work) == self.addresses
        self.result.copy_(self.work())


def _addresses(work: Callable[[], torch.Tensor]) -> list[int]:
    """Of all that a step reads or keeps, in memory that is there."""
    executor = inspect.getclosurevars(work).nonlocals["self"]
    roots = (executor._runner, executor._rows, executor._lanes, executor._ring.place)
    found = [each.data_ptr() for each in reached_tensors(roots, torch.device("cpu"))]
    assert all(map(can_be_read, found))
    return sorted(found)


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch, as_gpu: None) -> Capturing:
    capturing = Capturing()
    monkeypatch.setattr(assembly, "_fitted", lambda blueprint, *_: blueprint.sizing)
    monkeypatch.setattr(device_executor, "capture", capturing)
    monkeypatch.setattr(device_executor, "graph_pool", lambda: None)
    pretend(monkeypatch)
    return capturing


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeMemoryDriver:
    library = FakeMemoryDriver()
    monkeypatch.setattr(engine_module, "open_driver", lambda _: driver_over(library))
    return library


def load(path: Path, **more: object) -> Engine:
    options = EngineOptions(
        path=path,
        threads=1,
        dtype="float32",
        max_concurrency=1,
        max_ctx=32,
        block_tokens=8,
        cpu_exact=True,
        takes_turns=True,
        **more,  # type: ignore[arg-type]
    )
    engine = Engine.load(options, lambda *_: None)
    with torch.inference_mode():
        assert engine._executor is not None
        engine._executor.capture_all(lambda *_: None)
    return engine


def answer(engine: Engine) -> list[int]:
    """A prompt's token, and that of a captured step."""
    params = SamplingParams(max_tokens=5, logit_bias={9: -0.5})
    start = RowStart(0, params, 0, PROMPT, len(PROMPT))
    item = ScheduledSequence(0, 0, PROMPT, BLOCKS[:1], sample=True)
    ids = list(engine.step(StepPlan(1, (start,), (item,))).result().token_ids)
    item = ScheduledSequence(0, len(PROMPT), (), BLOCKS[:1], sample=True, output_index=1)
    ids += engine.step(StepPlan(2, (), (item,))).result().token_ids
    return ids


def nothing() -> None:
    """There is nothing to save."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "levels"), [(tiny_llama, ("host", "warm", "host")), (tiny_qwen35, ("host",))]
)
def test_captured_steps_outlive_memory(
    tmp_path: Path,
    family: Callable[..., Path],
    levels: tuple[EvictionLevel, ...],
    capturing: Capturing,
    library: FakeMemoryDriver,
) -> None:
    engine = load(family(tmp_path))
    before = answer(engine)
    assert (capturing.count, capturing.replays) == (1, 1)
    runner = engine._runner
    resident = library.used_bytes
    assert resident >= engine.resolved.weights_bytes + engine.resolved.kv_bytes
    assert engine.peak_bytes == resident
    for level in levels:
        kept = engine.evict(level, nothing)
        assert kept.device_bytes == library.used_bytes + GRAPH_BYTES
        assert (library.used_bytes == 0) == (level == "host")
        assert not can_be_read(runner.kv.blocks.data_ptr())
        engine.reinstate()
        assert engine._runner is runner
        assert library.used_bytes == resident
        assert not runner.kv.blocks.any()
        assert answer(engine) == before
    assert (capturing.count, capturing.replays) == (1, 1 + len(levels))
    assert library.wrong == []


def test_who_is_asked_again_gives_steps_up(
    tmp_path: Path, capturing: Capturing, library: FakeMemoryDriver
) -> None:
    engine = load(tiny_llama(tmp_path))
    first = engine.evict("host", nothing)
    again = engine.evict("host", nothing)
    assert (first.device_bytes, again.device_bytes) == (GRAPH_BYTES, 0)
    assert first.host_bytes == again.host_bytes > 0
    engine.reinstate()
    assert capturing.count == 2
    assert engine.evict("host", nothing).device_bytes == GRAPH_BYTES


def test_nothing_is_left_of_what_goes_for_good(
    tmp_path: Path, capturing: Capturing, library: FakeMemoryDriver
) -> None:
    engine = load(tiny_llama(tmp_path))
    engine.evict("host", nothing)
    assert engine.evict("cold", nothing).device_bytes == 0
    engine.reinstate()
    assert capturing.count == 2
    engine.close()
    assert library.used_bytes == 0
    assert library.wrong == []


def test_a_cache_that_cannot_come_back(
    tmp_path: Path, capturing: Capturing, library: FakeMemoryDriver
) -> None:
    """The model stays out, whole, and can be asked again."""
    engine = load(tiny_llama(tmp_path), kv_pool_tokens=1024)
    for call, number in (("MemCreate", 2), ("MemMap", 801), ("MemSetAccess", 801)):
        kept = engine.evict("host", nothing)
        # A piece of the cache comes before there are no more.
        pieces = kept.host_bytes // GRANULARITY + 1
        library.fail(call, after=pieces, number=number)
        library.capacity_bytes = pieces * GRANULARITY if number == 2 else 1 << 40
        with pytest.raises(PlacementError, match=r"ran out of memory|gave no memory"):
            engine.reinstate()
        assert library.used_bytes == 0
        library.capacity_bytes = 1 << 40
        engine.reinstate()
    assert len(answer(engine)) == 2
    assert capturing.count == 1
    assert library.wrong == []


def test_steps_that_could_not_all_be_captured_are_not_kept(
    tmp_path: Path, capturing: Capturing, library: FakeMemoryDriver
) -> None:
    engine = load(tiny_llama(tmp_path))
    before = answer(engine)
    engine.evict("host", nothing)
    engine.evict("host", nothing)
    capturing.failures = 1
    with pytest.raises(PlacementError, match="while capturing"):
        engine.reinstate()
    assert library.used_bytes == 0
    engine.reinstate()
    assert capturing.count == 3
    assert answer(engine) == before
    assert (capturing.replays, library.wrong) == (2, [])


def test_rows_that_find_no_memory_are_no_fault(
    tmp_path: Path,
    capturing: Capturing,
    library: FakeMemoryDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = load(tiny_llama(tmp_path))
    engine.evict("host", nothing)
    engine.evict("host", nothing)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "make_executor", full)
        with pytest.raises(PlacementError, match="ran out of memory"):
            engine.reinstate()
    engine.reinstate()
    assert len(answer(engine)) == 2
    assert library.wrong == []


def test_rows_are_new_after_it(
    tmp_path: Path, capturing: Capturing, library: FakeMemoryDriver
) -> None:
    engine = load(tiny_llama(tmp_path))
    answer(engine)
    engine.evict("host", nothing)
    engine.reinstate()
    assert engine._executor is not None
    assert not engine._executor._rows.has_adjusted([0])
    late = ScheduledSequence(0, 8, (), BLOCKS, sample=True)
    with pytest.raises(InternalError, match="was not started"):
        engine.step(StepPlan(9, (), (late,)))


@pytest.mark.parametrize("call", ["MemAddressReserve", "MemCreate"])
def test_a_driver_that_gives_no_cache(
    tmp_path: Path, capturing: Capturing, library: FakeMemoryDriver, call: str
) -> None:
    """PyTorch's memory serves, and steps are captured anew."""
    path = tiny_llama(tmp_path)
    engine = load(path)
    weights = engine._weights.placed_bytes // GRANULARITY
    engine.close()
    library.fail(call, after={"MemAddressReserve": 1}.get(call, weights))
    engine = load(path)
    assert engine._runner.memory is None
    assert engine._weights.placing_driver is not None
    count = capturing.count
    assert engine.evict("host", nothing).device_bytes == 0
    engine.reinstate()
    assert capturing.count == count + 1
    assert len(answer(engine)) == 2
