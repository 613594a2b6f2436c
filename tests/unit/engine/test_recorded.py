"""A recorded forward pass gives the bits of the pass itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from luce.engine.engine import Engine
from luce.engine.inputs import InputBatch
from luce.engine.native.library import native_library
from luce.engine.ops.attention import AttentionBatch
from luce.engine.options import EngineOptions
from luce.engine.recorded import RecordedModel
from luce.engine.runner import Runner
from luce.testing.tiny_models import (
    EXPERTS,
    LINEAR,
    tiny_llama,
    tiny_qwen2,
    tiny_qwen3,
    tiny_qwen3moe,
    tiny_qwen35,
    tiny_qwen35moe,
)

FAMILIES = {
    "llama": tiny_llama,
    "qwen2": tiny_qwen2,
    "qwen3": tiny_qwen3,
    "qwen3moe": tiny_qwen3moe,
    "qwen35": tiny_qwen35,
    "qwen35moe": tiny_qwen35moe,
}
HYBRIDS = {"qwen35": tiny_qwen35, "qwen35moe": tiny_qwen35moe}
TYPED = [("llama", "f16"), ("llama", "q8_0"), ("qwen3", "q4_0")]

pytestmark = pytest.mark.skipif(isinstance(native_library(), str), reason="no native kernels here")


def load(path: Path, **options: object) -> Engine:
    wanted = EngineOptions(path=path, threads=2, chunk=32, **options)  # type: ignore[arg-type]
    return Engine.load(wanted, lambda *_: None)


def batch(lengths: tuple[int, ...], seed: int, block_tokens: int = 16) -> InputBatch:
    """Whole prompts, each on three blocks of its own."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    tables = tuple(tuple(range(1 + 3 * n, 4 + 3 * n)) for n in range(len(lengths)))
    places = [(n, place) for n, length in enumerate(lengths) for place in range(length)]
    slots = [(1 + 3 * n) * block_tokens + place for n, place in places]
    generator = torch.Generator().manual_seed(seed)
    return InputBatch(
        input_ids=torch.randint(0, 200, (starts[-1],), generator=generator, dtype=torch.int32),
        positions=torch.tensor([place for _, place in places], dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        attention=AttentionBatch(tuple(starts), lengths, tables, block_tokens),
        logits_index=torch.tensor([stop - 1 for stop in starts[1:]]),
        rows=tuple(range(len(lengths))),
        sampled_rows=tuple(range(len(lengths))),
        output_indices=(0,) * len(lengths),
    )


def logits(runner: Runner, inputs: InputBatch) -> torch.Tensor:
    with torch.inference_mode():
        found = runner.logits(inputs)
    assert found is not None
    return found


def unrecorded(engine: Engine) -> Runner:
    """The same weights, run operation by operation, on the same cache."""
    runner = engine._runner
    model = runner.model
    assert isinstance(model, RecordedModel)
    return Runner(model._model, runner.kv, runner.attention, runner.states)


def outcome(runner: Runner, inputs: InputBatch) -> tuple[torch.Tensor, ...]:
    """Logits of sequences that begin here, and the states behind them."""
    if runner.states is None:
        return (logits(runner, inputs),)
    with torch.inference_mode():
        for layer in runner.states.layers:
            layer.conv.zero_()
            layer.recurrent.zero_()
    return (logits(runner, inputs), *(each.clone() for each in stores(runner)))


def stores(runner: Runner) -> list[torch.Tensor]:
    """The states of all slots."""
    assert runner.states is not None
    return [each for layer in runner.states.layers for each in (layer.conv, layer.recurrent)]


def same(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize(("family", "stored"), [*((each, "f32") for each in FAMILIES), *TYPED])
def test_the_same_bits(tmp_path: Path, family: str, stored: str) -> None:
    path = FAMILIES[family](tmp_path / family, quant="Q8_0", head_dim=32)
    engine = load(path, cache_type_k=stored, cache_type_v=stored)
    engine.warm_up()
    plain = unrecorded(engine)
    for seed, lengths in enumerate([(1,), (20, 3), (1, 1, 1), (30, 7, 2)]):
        inputs = batch(lengths, seed)
        assert same(outcome(engine._runner, inputs), outcome(plain, inputs)), lengths
    assert engine._runner.model._recorded is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", HYBRIDS)
def test_recording_advances_no_state(tmp_path: Path, family: str) -> None:
    """The first step is recorded and compared before it is run; so is one larger than all."""
    engine = load(HYBRIDS[family](tmp_path / family, quant="Q8_0"), max_concurrency=2)
    inputs, runner = batch((20, 3), 7), engine._runner
    expected = outcome(unrecorded(engine), inputs)
    assert same(outcome(runner, inputs), expected)
    assert runner.model._recorded is not None  # type: ignore[attr-defined]
    assert any(bool(each.any()) for each in stores(runner))
    large = batch((40, 33), 8)
    expected = outcome(unrecorded(engine), large)
    assert same(outcome(runner, large), expected)


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_recurrence_without_kernels_is_not_recorded(tmp_path: Path, family: str) -> None:
    """Keys of 24 numbers; what runs while it is recorded must find no states."""
    linear = replace(LINEAR, key_head_dim=24)
    path = HYBRIDS[family](tmp_path / family, quant="Q8_0", linear=linear)
    engine, exact = load(path), load(path, cpu_exact=True)
    inputs = batch((9, 4), 3)
    found, expected = outcome(engine._runner, inputs), outcome(exact._runner, inputs)
    assert engine._runner.model._recorded is None  # type: ignore[attr-defined]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=5e-3 * float(theirs.abs().max()))


def test_plain_experts_are_not_recorded(tmp_path: Path) -> None:
    """Which of them are called depends on the tokens."""
    experts = replace(EXPERTS, size=48, shared_size=0)
    path = tiny_qwen3moe(tmp_path / "moe", quant="Q8_0", experts=experts)
    engine, exact = load(path), load(path, cpu_exact=True)
    assert not isinstance(engine._runner.model, RecordedModel)
    inputs = batch((9, 4), 3)
    found, expected = logits(engine._runner, inputs), logits(exact._runner, inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-3 * float(expected.abs().max()))


def test_experts_take_what_they_take_in_the_file(tmp_path: Path) -> None:
    path = tiny_qwen35moe(tmp_path / "moe", quant="Q4_0")
    native, exact = load(path), load(path, cpu_exact=True)
    assert 5 * native.resolved.weights_bytes < exact.resolved.weights_bytes
    assert native.resolved.weights_bytes < path.stat().st_size


def test_a_step_larger_than_any_before(tmp_path: Path) -> None:
    engine = load(tiny_llama(tmp_path / "llama", quant="Q4_0"), max_concurrency=2)
    small, large = batch((3,), 1), batch((40, 33), 2)
    runner, plain = engine._runner, unrecorded(engine)
    for inputs in (small, large, small):
        assert torch.equal(logits(runner, inputs), logits(plain, inputs))


def test_a_model_that_is_not_native_throughout_is_not_recorded(tmp_path: Path) -> None:
    """Blocks of 8 tokens: attention is another's."""
    path = tiny_llama(tmp_path / "llama", quant="Q8_0")
    engine, exact = load(path, block_tokens=8), load(path, block_tokens=8, cpu_exact=True)
    inputs = batch((9, 4), 3, block_tokens=8)
    found, expected = logits(engine._runner, inputs), logits(exact._runner, inputs)
    assert engine._runner.model._recorded is None  # type: ignore[attr-defined]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_exact_uses_nothing_native(tmp_path: Path) -> None:
    engine = load(tiny_llama(tmp_path / "llama", quant="Q8_0"), cpu_exact=True)
    assert "native=none" in engine.resolved.kernels
    assert not isinstance(engine._runner.model, RecordedModel)


def test_weights_take_what_they_take_in_the_file(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "llama", quant="Q4_0")
    native, exact = load(path), load(path, cpu_exact=True)
    assert 5 * native.resolved.weights_bytes < 2 * exact.resolved.weights_bytes
