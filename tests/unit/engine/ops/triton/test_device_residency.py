"""A device's engine that reads prompts, goes and comes back; kernels run in the interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from luce.engine import assembly
from luce.engine.device_executor import DeviceExecutor
from luce.engine.engine import Engine
from luce.engine.options import EngineOptions
from luce.protocol.sampling import HiddenRead, SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.testing.tiny_models import tiny_llama

PROMPT = (7, 3, 9, 11, 4, 6)


def load(path: Path) -> Engine:
    options = EngineOptions(
        path=path, threads=1, max_concurrency=1, max_ctx=32, block_tokens=8, cpu_exact=True
    )
    return Engine.load(options, lambda *_: None)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch, as_gpu: None) -> None:
    """Let a CPU pass for a GPU that has no captured steps."""

    monkeypatch.setattr(assembly, "_fitted", lambda blueprint, *_: blueprint.sizing)
    monkeypatch.setattr(DeviceExecutor, "capture_all", lambda *_: None)
    monkeypatch.setattr(DeviceExecutor, "capture_mixed", lambda *_: None)


def read(engine: Engine) -> np.ndarray:
    """Last and mean of all blocks, of a prompt in two chunks."""
    layers = tuple(range(engine.resolved.num_layers))
    params = SamplingParams(max_tokens=1, hidden=HiddenRead(layers, wants_mean=True))
    start = RowStart(0, params, 0, PROMPT, len(PROMPT))
    first = ScheduledSequence(0, 0, PROMPT[:4], (2,), sample=False)
    second = ScheduledSequence(0, 4, PROMPT[4:], (2,), sample=False)
    assert engine.step(StepPlan(1, (start,), (first,))).result().hidden == ()
    ((row, states),) = engine.step(StepPlan(2, (), (second,))).result().hidden
    assert row == 0
    assert states is not None
    return np.frombuffer(states.last + states.mean, dtype="<f4")


@pytest.mark.slow
def test_states_and_a_swap(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tiny_llama(tmp_path)
    expected = read(load(path))
    request.getfixturevalue("on_device")
    engine = load(path)
    assert engine._executor is not None
    found = read(engine)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    engine.evict("warm", lambda: None)
    engine.reinstate()
    np.testing.assert_array_equal(read(engine), found)
