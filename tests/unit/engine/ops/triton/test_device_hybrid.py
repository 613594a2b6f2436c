"""Recurrent states on the device path, in the interpreter: started, saved, padded around."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from luce.engine import assembly
from luce.engine.device_inputs import StepShape, step_numbers
from luce.engine.engine import Engine
from luce.engine.options import EngineOptions
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.testing.tiny_models import tiny_qwen35, tiny_qwen35moe

GREEDY = SamplingParams(max_tokens=50)
PROMPT = tuple((7 * i) % 200 + 5 for i in range(13))
TABLE = (4, 2)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch, as_gpu: None) -> None:
    """Let a CPU pass for a GPU: the kernels run in the interpreter."""
    monkeypatch.setattr(assembly, "_fitted", lambda blueprint, *_: blueprint.sizing)


@pytest.fixture
def engine(tmp_path: Path, on_device: None) -> Engine:
    return load(tiny_qwen35(tmp_path))


def load(path: Path, *, cpu_exact: bool = False) -> Engine:
    """With three rows and two checkpoints; exact, weights are decoded on a CPU."""
    options = EngineOptions(
        path=path,
        threads=1,
        max_concurrency=3,
        max_ctx=64,
        block_tokens=8,
        num_checkpoints=2,
        cpu_exact=cpu_exact,
    )
    return Engine.load(options, lambda *_: None)


def step(engine: Engine, *items: ScheduledSequence, starts: tuple[RowStart, ...] = ()) -> list[int]:
    """Run one step; the sampled tokens."""
    return list(engine.step(StepPlan(1, starts, items)).result().token_ids)


def start(row: int, restore: int | None = None) -> RowStart:
    return RowStart(row, GREEDY, 0, PROMPT, len(PROMPT), restore_checkpoint=restore)


def states(engine: Engine, slot: int) -> list[torch.Tensor]:
    held = engine._runner.states
    assert held is not None
    return [part[slot].clone() for layer in held.layers for part in (layer.conv, layer.recurrent)]


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(left, right, strict=True))


@pytest.mark.slow
def test_a_state_is_saved_restored_and_started_anew(engine: Engine) -> None:
    first, rest = PROMPT[:8], PROMPT[8:]
    save = ScheduledSequence(1, 0, first, TABLE, sample=False, save_checkpoint=0)
    step(engine, save, starts=(start(1),))
    saved = states(engine, 1)
    assert any(part.any() for part in saved)
    expected = step(engine, ScheduledSequence(1, 8, rest, TABLE, sample=True))
    assert not equal(states(engine, 1), saved)
    on = ScheduledSequence(2, 8, rest, (4, 5), sample=True)
    assert step(engine, on, starts=(start(2, restore=0),)) == expected
    assert equal(states(engine, 2), states(engine, 1))
    # A new occupant finds nothing of the last one.
    again = ScheduledSequence(1, 0, first, TABLE, sample=False)
    step(engine, again, starts=(start(1),))
    assert equal(states(engine, 1), saved)


@pytest.mark.slow
def test_padding_lanes_leave_rows_and_checkpoints_alone(engine: Engine) -> None:
    save = ScheduledSequence(0, 0, PROMPT, TABLE, sample=True, save_checkpoint=1)
    step(engine, save, starts=(start(0),))
    before = [states(engine, slot) for slot in range(6)]
    executor = engine._executor
    assert executor is not None
    from luce.engine.device_inputs import decode_lanes

    item = ScheduledSequence(0, len(PROMPT), (), TABLE, sample=True, output_index=1)
    lanes = decode_lanes([item], 8, 3, executor._rows.padding_row)
    executor._ring.restart()
    executor._ring.send(lanes)
    with torch.inference_mode():
        executor._decode(3, [])
    after = [states(engine, slot) for slot in range(6)]
    changed = [slot for slot in range(6) if not equal(before[slot], after[slot])]
    assert changed == [0, executor._rows.padding_row]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "tokens"), [(tiny_qwen35, 19), (tiny_qwen35moe, 13)])
def test_padded_prompts_leave_other_rows_alone(
    tmp_path: Path, on_device: None, family: Callable[[Path], Path], tokens: int
) -> None:
    """What a captured step does: lanes, chunks and tokens of padding around a chunk.

    Tokens of padding may be no numbers, which the interpreter warns of where experts are chosen.
    """
    engine = load(family(tmp_path))
    executor = engine._executor
    assert executor is not None
    item = ScheduledSequence(1, 0, PROMPT, TABLE, sample=True)
    expected = step(engine, item, starts=(start(1),))
    after = [states(engine, slot) for slot in range(6)]
    shape, padding_row = StepShape(2, 3, tokens, tokens, 2), executor._rows.padding_row
    numbers = torch.from_numpy(step_numbers((item,), shape, 8, padding_row))
    with torch.inference_mode():
        engine._runner.start_states([start(1)])
        assert not equal(states(engine, 1), after[1])
        found = executor._mixed_work(numbers, shape, [])
    assert found[:1].tolist() == expected
    changed = [slot for slot in range(6) if not equal(states(engine, slot), after[slot])]
    assert changed == [padding_row]


@pytest.mark.slow
def test_quantised_experts_stay_so(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A step of a few tokens, which go pair by pair, and one of more, which go by expert."""
    path = tiny_qwen35moe(tmp_path, quant="Q8_0")
    host = load(path, cpu_exact=True)
    prompts = [PROMPT[:3], PROMPT]
    items = [ScheduledSequence(0, 0, ids, TABLE, sample=True) for ids in prompts]
    expected = [step(host, item, starts=(start(0),)) for item in items]
    request.getfixturevalue("on_device")
    device = load(path)
    assert "quantised=triton" in device.resolved.kernels
    assert device.resolved.weights_bytes < host.resolved.weights_bytes / 2
    assert [step(device, item, starts=(start(0),)) for item in items] == expected
