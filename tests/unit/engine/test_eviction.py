"""Where weights are, at each level; a CPU stands for a GPU where they are parked."""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path

import pytest
import torch

from luce.engine import eviction
from luce.engine.device import Device
from luce.engine.engine import Engine
from luce.engine.options import EngineOptions
from luce.engine.parked_weights import ParkedWeights
from luce.errors import InternalError, ModelFileError, PlacementError
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.testing.tiny_models import tiny_llama

PROMPT = tuple(range(5, 25))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path)


def load(path: Path, **options: object) -> Engine:
    # Decoded weights are tensors of PyTorch's own memory, as they are on a GPU.
    wanted = EngineOptions(path=path, threads=1, cpu_exact=True, dtype="bfloat16", **options)  # type: ignore[arg-type]
    return Engine.load(wanted, lambda *_: None)


def first_token(engine: Engine) -> int:
    start = RowStart(0, SamplingParams(max_tokens=10), 0, PROMPT, len(PROMPT))
    item = ScheduledSequence(0, 0, PROMPT, (3, 4), sample=True)
    return engine.step(StepPlan(1, (start,), (item,))).result().token_ids[0]


def nothing() -> None:
    """There is nothing to save."""


@pytest.mark.parametrize("level", ["cold", "host", "warm"])
def test_the_same_token_behind_every_level(path: Path, level: eviction.EvictionLevel) -> None:
    engine = load(path)
    before = first_token(engine)
    engine.evict(level, nothing)
    engine.reinstate()
    assert first_token(engine) == before


@pytest.mark.parametrize(
    ("levels", "kept"),
    [
        (pair, kept)
        for pair in itertools.product(("warm", "host", "cold"), repeat=2)
        for kept in [max(pair, key=("warm", "host", "cold").index)]
    ],
)
def test_less_is_kept_and_never_more(
    path: Path, levels: tuple[eviction.EvictionLevel, ...], kept: str
) -> None:
    engine = load(path)
    weights = engine.resolved.weights_bytes
    for level in levels:
        found = engine.evict(level, nothing)
    expected = {"warm": (weights, 0), "host": (0, weights), "cold": (0, 0)}[kept]
    assert (found.device_bytes, found.host_bytes) == expected


def test_save_is_called_while_blocks_are_there(path: Path) -> None:
    engine = load(path)
    seen: list[int] = []
    engine.evict("host", lambda: seen.append(engine._runner.kv.nbytes))
    assert seen == [engine.resolved.kv_bytes]


@pytest.mark.parametrize("level", ["host", "warm"])
def test_the_cache_is_in_no_cycle(path: Path, level: eviction.EvictionLevel) -> None:
    """It goes at once, without a collection."""
    engine = load(path)
    engine.warm_up()
    first_token(engine)
    cache = weakref.ref(engine._runner.kv)
    gc.disable()
    try:
        engine.evict(level, nothing)
        assert cache() is None
    finally:
        gc.enable()


def test_rows_are_new_after_it(path: Path) -> None:
    """A row of before is nobody's, and is said to be."""
    engine = load(path)
    first_token(engine)
    engine.evict("warm", nothing)
    engine.reinstate()
    late = ScheduledSequence(0, 20, (), (3, 4), sample=True)
    with pytest.raises(InternalError, match="was not started"):
        engine.step(StepPlan(2, (), (late,)))


def test_weights_read_again_that_make_no_numbers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(path)
    engine.evict("cold", nothing)
    build = eviction.build_model

    def spoilt(*args: object) -> object:
        built = build(*args)  # type: ignore[arg-type]
        with torch.inference_mode():
            built.model._norm.weight.fill_(float("nan"))  # type: ignore[attr-defined]
        return built

    with monkeypatch.context() as patch:
        patch.setattr(eviction, "build_model", spoilt)
        with pytest.raises(ModelFileError, match="not finite"):
            engine.reinstate()
    # What came of it was given back, and it can be tried again.
    assert engine.evict("cold", nothing).host_bytes == 0
    engine.reinstate()
    assert first_token(engine) >= 0


def test_closing_an_evicted_engine(path: Path) -> None:
    for level in ("cold", "host", "warm"):
        engine = load(path)
        engine.evict(level, nothing)  # type: ignore[arg-type]
        engine.close()


@pytest.fixture
def as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are parked as from a GPU; memory of the device is that of no storage."""
    monkeypatch.setattr(Device, "is_cpu", property(lambda _: False))
    monkeypatch.setattr(eviction, "held_bytes", lambda _: 0)
    for name in ("host_buffer", "synchronize"):
        monkeypatch.setattr(f"luce.engine.parked_weights.{name}", getattr(_OnCpu, name))
    monkeypatch.setattr("luce.engine.engine.release_all", lambda _: None)
    monkeypatch.setattr("luce.engine.assembly.release_cached", lambda _: None)


class _OnCpu:
    @staticmethod
    def host_buffer(nbytes: int, device: Device) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    @staticmethod
    def synchronize(device: Device) -> None:
        return None


def test_parked_weights_are_copied_once(path: Path, request: pytest.FixtureRequest) -> None:
    engine = load(path)
    before = first_token(engine)
    request.getfixturevalue("as_gpu")
    kept = engine.evict("host", nothing)
    assert kept.host_bytes >= engine.resolved.weights_bytes * 0.9
    parked = engine._weights._parked
    assert parked is not None
    assert parked.device_bytes == 0
    engine.reinstate()
    assert first_token(engine) == before
    engine.evict("host", nothing)
    assert engine._weights._parked is parked
    engine.reinstate()
    assert first_token(engine) == before
    assert engine.evict("cold", nothing).host_bytes == 0


def test_no_host_memory_to_park_in(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(path)
    before = first_token(engine)
    request.getfixturevalue("as_gpu")

    def exhausted(*_: object) -> ParkedWeights:
        raise RuntimeError("CUDA error: out of memory\nand more")

    saved: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(eviction, "ParkedWeights", exhausted)
        with pytest.raises(PlacementError, match="cannot be parked"):
            engine.evict("host", lambda: saved.append(True))
    # Nothing was touched: it serves as before.
    assert saved == []
    assert first_token(engine) == before


def test_a_device_that_lacks_room_when_weights_return(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(path)
    before = first_token(engine)
    request.getfixturevalue("as_gpu")
    engine.evict("host", nothing)

    def exhausted(_: ParkedWeights) -> None:
        raise torch.cuda.OutOfMemoryError("no")

    with monkeypatch.context() as patch:
        patch.setattr(ParkedWeights, "return_", exhausted)
        with pytest.raises(PlacementError, match="came back from host"):
            engine.reinstate()
    assert engine._weights._parked is not None
    assert engine._weights._parked.device_bytes == 0
    engine.reinstate()
    assert first_token(engine) == before
