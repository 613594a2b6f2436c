"""Engines that leave a GPU and come back: the same ids, its memory free meanwhile.

One that takes turns keeps its captured steps: its memory comes back to the same addresses.
"""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from luce.engine import device_arena
from luce.engine.device_executor import DeviceExecutor
from luce.engine.engine import Engine
from luce.engine.eviction import EvictionLevel
from luce.engine.host_blocks import HostBlocks
from luce.engine.memory_driver import MemoryDriver
from luce.engine.options import EngineOptions
from luce.errors import PlacementError
from luce.protocol.sampling import HiddenRead, SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.sizing.steps import GRAPH_BYTES

pytest.importorskip("gguf", reason="the tiny models are written by gguf")

from luce.testing.tiny_models import tiny_llama, tiny_qwen2, tiny_qwen35, tiny_qwen35moe

PROMPT = tuple(range(5, 105))
GREEDY = SamplingParams(max_tokens=64)
MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path)


def load(path: Path, device: str = "cuda:0", **more: object) -> Engine:
    options = EngineOptions(
        path=path, device=device, dtype="float32", max_concurrency=4, max_ctx=256, **more
    )  # type: ignore[arg-type]
    engine = Engine.load(options, lambda *_: None)
    engine.warm_up()
    return engine


def generate(engine: Engine, count: int = 12) -> list[int]:
    table = tuple(range(1, 9))
    start = RowStart(0, GREEDY, 0, PROMPT, len(PROMPT))
    item = ScheduledSequence(0, 0, PROMPT, table[:7], sample=True)
    ids = list(engine.step(StepPlan(1, (start,), (item,))).result().token_ids)
    for index in range(1, count):
        at = len(PROMPT) + index - 1
        item = ScheduledSequence(0, at, (), table[: at // 16 + 1], sample=True, output_index=index)
        ids += engine.step(StepPlan(1 + index, (), (item,))).result().token_ids
    return ids


@pytest.mark.parametrize("quant", ["F32", "Q4_0"])
@pytest.mark.parametrize("level", ["warm", "host", "cold"])
@pytest.mark.parametrize("takes_turns", [False, True])
@pytest.mark.parametrize("family", [tiny_llama, tiny_qwen2])
def test_the_same_ids_behind_every_level(
    tmp_path: Path, family, takes_turns: bool, level: EvictionLevel, quant: str
) -> None:
    """Captured steps, tied tables and quantised planes included."""
    engine = load(family(tmp_path / "model", quant=quant), takes_turns=takes_turns)
    before = generate(engine)
    for _ in range(3):
        engine.evict(level, lambda: None)
        engine.reinstate()
        assert generate(engine) == before
    engine.close()


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the steps that were captured."""
    sizes: list[int] = []
    original = DeviceExecutor._capture

    def counted(executor: DeviceExecutor, size: int, pool: object):
        sizes.append(size)
        return original(executor, size, pool)

    monkeypatch.setattr(DeviceExecutor, "_capture", counted)
    return sizes


@pytest.mark.parametrize("family", [tiny_llama, tiny_qwen35, tiny_qwen35moe])
def test_captured_steps_outlive_memory(tmp_path: Path, family, captures: list[int]) -> None:
    """Recurrent states, experts' counters and their likes included."""
    engine = load(family(tmp_path / "model"), takes_turns=True)
    assert engine._weights.placing_driver is not None, "the driver was not taken: see the log"
    memory, kv = engine._runner.memory, engine._runner.kv.blocks
    assert memory is not None
    before, address = generate(engine), kv.data_ptr()
    # The largest one is captured twice for the first time: once to learn its memory.
    count, sizes = len(captures), len(set(captures))
    assert sizes > 0
    for level in ("host", "warm", "host"):
        free = torch.cuda.mem_get_info()[0]
        kept = engine.evict(level, lambda: None)  # type: ignore[arg-type]
        torch.cuda.synchronize()
        given = memory.nbytes + (engine._weights._placed.nbytes if level == "host" else 0)
        assert torch.cuda.mem_get_info()[0] - free >= given
        assert kept.device_bytes >= sizes * GRAPH_BYTES
        engine.reinstate()
        assert kv.data_ptr() == address
        assert not kv.any()
        assert generate(engine) == before
    assert len(captures) == count
    engine.evict("cold", lambda: None)
    engine.reinstate()
    assert generate(engine) == before
    assert len(captures) == count + sizes
    engine.close()


@pytest.mark.parametrize("after", range(3))
def test_a_return_that_fails_can_be_tried_again(
    path: Path, after: int, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the weights, between them and the cache, and behind it."""
    monkeypatch.setattr(device_arena, "SEGMENT_BYTES", 1 << 40)
    engine = load(path, takes_turns=True)
    before, count = generate(engine), len(captures)
    engine.evict("host", lambda: None)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    original, left = MemoryDriver.back, iter(range(after))

    def back(driver: MemoryDriver, address: int, nbytes: int) -> int:
        if next(left, None) is None:
            raise torch.OutOfMemoryError("as if")
        return original(driver, address, nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDriver, "back", back)
        if after < 2:
            with pytest.raises(PlacementError):
                engine.reinstate()
            assert torch.cuda.mem_get_info()[0] >= free - 2 * MIB
    engine.reinstate()
    assert generate(engine) == before
    assert len(captures) == count
    engine.close()


def allocated() -> int:
    """Bytes on the device, without the workspaces PyTorch keeps for its libraries' streams."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def test_parked_weights_leave_nothing_on_the_device(path: Path) -> None:
    before = allocated()
    engine = load(path)
    weights = engine.resolved.weights_bytes
    kept = engine.evict("host", lambda: None)
    assert kept.host_bytes >= weights
    assert allocated() - before < weights / 2
    engine.reinstate()
    assert engine.evict("cold", lambda: None).host_bytes == 0
    engine.close()


@pytest.mark.parametrize("takes_turns", [False, True])
@pytest.mark.parametrize("level", ["host", "cold"])
def test_ten_cycles_keep_no_memory(path: Path, level: EvictionLevel, takes_turns: bool) -> None:
    engine = load(path, takes_turns=takes_turns)
    free = []
    for _ in range(10):
        engine.evict(level, lambda: None)
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
        engine.reinstate()
        generate(engine)
    assert free[0] - free[-1] < 64 * MIB


@pytest.mark.parametrize("takes_turns", [False, True])
@pytest.mark.parametrize("cache", ["auto", "q8_0"])
def test_blocks_go_to_host_memory_and_back(path: Path, cache: str, takes_turns: bool) -> None:
    engine = load(path, cache_type_k=cache, cache_type_v=cache, takes_turns=takes_turns)
    generate(engine)
    store: HostBlocks = engine.host_blocks(64 * MIB)
    blocks = list(range(1, 7))
    before = engine._runner.kv.blocks[:, 1:7].clone()
    store.save_blocks(blocks, [0, 1, 2, 3, 5, 4])
    engine.evict("host", lambda: None)
    engine.reinstate()
    store.load_blocks([0, 1, 2, 3, 5, 4], [9, 3, 4, 8, 1, 2])
    for there, block in zip([9, 3, 4, 8, 1, 2], blocks, strict=True):
        assert torch.equal(engine._runner.kv.blocks[:, there], before[:, block - 1])


def test_hidden_states_are_those_of_a_cpu(path: Path) -> None:
    layers = (0, 1, 2)
    params = SamplingParams(max_tokens=1, hidden=HiddenRead(layers, wants_mean=True))
    found = []
    for device in ("cpu", "cuda:0"):
        engine = load(path, device, **({"cpu_exact": True} if device == "cpu" else {}))
        start = RowStart(0, params, 0, PROMPT, len(PROMPT))
        chunks = [
            ScheduledSequence(0, first, PROMPT[first:stop], tuple(range(1, 8)), sample=False)
            for first, stop in ((0, 64), (64, 100))
        ]
        engine.step(StepPlan(1, (start,), (chunks[0],))).result()
        ((_, states),) = engine.step(StepPlan(2, (), (chunks[1],))).result().hidden
        assert states is not None
        found.append(np.frombuffer(states.last + states.mean, dtype="<f4"))
    assert np.abs(found[0] - found[1]).max() < 1e-3 * np.abs(found[0]).max()
