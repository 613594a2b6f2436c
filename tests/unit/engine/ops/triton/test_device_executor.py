"""Whole steps on the device path, in the interpreter: the same ids as the host path."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from luce.engine import assembly, device_executor
from luce.engine.device_executor import _CapturedStep
from luce.engine.device_inputs import StepShape, step_numbers
from luce.engine.engine import Engine
from luce.engine.extras import StepExtras
from luce.engine.models import folding
from luce.engine.ops.triton import projection
from luce.engine.ops.triton.sampling import StepLogits
from luce.engine.options import EngineOptions
from luce.kv.spec import blocks_for
from luce.loaders.checkpoint import TensorSource
from luce.loaders.opening import open_checkpoint
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.sizing.steps import GRAPH_BYTES, padded_sizes
from luce.testing.tiny_models import tiny_llama, tiny_qwen3, tiny_qwen35, tiny_qwen35moe

GREEDY = SamplingParams(max_tokens=50)
SAMPLED = SamplingParams(
    max_tokens=50,
    temperature=0.9,
    top_k=40,
    top_p=0.95,
    repetition_penalty=1.3,
    logit_bias={5: 1.0},
)


def load(path: Path, **more: object) -> Engine:
    options = EngineOptions(
        path=path,
        threads=1,
        max_concurrency=3,
        max_ctx=96,
        block_tokens=8,
        **more,  # type: ignore[arg-type]
    )
    return Engine.load(options, lambda *_: None)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch, as_gpu: None) -> None:
    """Let a CPU pass for a GPU: the kernels run in the interpreter."""

    # There is no device memory to measure.
    monkeypatch.setattr(assembly, "_fitted", lambda blueprint, *_: blueprint.sizing)


def checkpoint_of(path: Path) -> TensorSource:
    return open_checkpoint(path).tensors


def generate(engine: Engine, sampling: SamplingParams, chunk: int, count: int) -> list[list[int]]:
    """Three prompts of unlike length that arrive one step after the other."""
    prompts = [
        [(7 * i + 3 * row) % 200 + 5 for i in range(length)]
        for row, length in enumerate((11, 3, 9))
    ]
    outputs: list[list[int]] = [[], [], []]
    done = [0, 0, 0]
    for step in range(1, count + 4):
        starts, decode, prefill = [], [], []
        for row in range(min(3, step)):
            prompt = prompts[row]
            is_decode = done[row] >= len(prompt)
            stop = done[row] + 1 if is_decode else min(done[row] + chunk, len(prompt))
            blocks = tuple(1 + row * 12 + (5 * i) % 12 for i in range(blocks_for(stop, 8)))
            if done[row] == 0:
                starts.append(RowStart(row, sampling, 77 + row, tuple(prompt), len(prompt)))
            item = ScheduledSequence(
                row,
                done[row],
                () if is_decode else tuple(prompt[done[row] : stop]),
                blocks,
                sample=stop >= len(prompt),
                output_index=len(outputs[row]),
            )
            (decode if is_decode else prefill).append(item)
            done[row] = stop
        plan = StepPlan(step, tuple(starts), tuple(decode + prefill))
        ids = iter(engine.step(plan).result().token_ids)
        for item in plan.items:
            if item.sample:
                outputs[item.row].append(next(ids))
    return [output[:count] for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "sampling"),
    [(tiny_llama, SAMPLED), (tiny_qwen3, GREEDY), (tiny_qwen35, GREEDY), (tiny_qwen35moe, SAMPLED)],
    ids=["llama", "qwen3", "qwen35", "qwen35moe"],
)
def test_same_ids_as_the_host(
    tmp_path: Path,
    family: Callable[..., Path],
    sampling: SamplingParams,
    request: pytest.FixtureRequest,
) -> None:
    path = family(tmp_path)
    expected = generate(load(path), sampling, 8, 2)
    request.getfixturevalue("on_device")
    engine = load(path)
    assert engine._executor is not None
    assert "attention=triton" in engine.resolved.kernels
    assert generate(engine, sampling, 8, 2) == expected


@pytest.mark.slow
def test_norms_folded_into_products_give_the_same_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    path = tiny_qwen3(tmp_path)
    expected = generate(load(path), GREEDY, 8, 2)
    request.getfixturevalue("on_device")
    # In the type that ids can be held against.
    monkeypatch.setattr(folding, "FOLDED", torch.float32)
    with monkeypatch.context() as within:
        # Nothing is left for it but the norm before the output matrix.
        within.setattr(projection.FusedProduct, "__call__", None)
        assert generate(load(path), GREEDY, 8, 2) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "quant"), [(tiny_llama, "Q4_0"), (tiny_qwen3, "Q8_0")], ids=["tied", "untied"]
)
def test_quantised_weights_stay_so_and_give_the_same_ids(
    tmp_path: Path, family: Callable[..., Path], quant: str, request: pytest.FixtureRequest
) -> None:
    path = family(tmp_path, quant=quant)
    decoded = load(path, cpu_exact=True)
    expected = generate(decoded, GREEDY, 8, 2)
    request.getfixturevalue("on_device")
    engine = load(path)
    assert "quantised=triton" in engine.resolved.kernels
    assert generate(engine, GREEDY, 8, 2) == expected
    stored = sum(
        meta.nbytes
        for meta in map(checkpoint_of(path).meta, checkpoint_of(path).names())
        if meta.type == quant
    )
    rotary, norms = 96 * 32 * 4, 32 << 10
    assert stored <= engine.resolved.weights_bytes - rotary <= 1.03 * stored + norms
    assert engine.resolved.weights_bytes < decoded.resolved.weights_bytes / 2


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value"), [("q8_0", "q8_0"), ("q8_0", "q4_0")])
def test_typed_caches_give_the_ids_of_the_host(
    tmp_path: Path, key: str, value: str, request: pytest.FixtureRequest
) -> None:
    path = tiny_qwen3(tmp_path)
    types = {"cache_type_k": key, "cache_type_v": value}
    host = load(path, **types)
    expected = generate(host, GREEDY, 8, 2)
    request.getfixturevalue("on_device")
    engine = load(path, **types)
    assert generate(engine, GREEDY, 8, 2) == expected
    assert engine.resolved.kv_bytes == host.resolved.kv_bytes < load(path).resolved.kv_bytes / 2


class Uncaptured:
    """A "captured" step that is run as it is each time, and leaves its tokens where it should.

    Attributes:
        count: how often it was.
    """

    def __init__(self, work: Callable[[list[StepLogits]], torch.Tensor], vocab_size: int) -> None:
        self._work = work
        self.step = _CapturedStep(
            self, torch.zeros(3, dtype=torch.int32), _logits(torch.empty(3, vocab_size))
        )
        self.count = 0

    def replay(self) -> None:
        left: list[StepLogits] = []
        with torch.inference_mode():
            self.step.token_ids.copy_(self._work(left))
            self.step.logits.raw.copy_(left[0].raw)
        self.count += 1


def _logits(raw: torch.Tensor) -> StepLogits:
    return StepLogits(raw, raw)


def replaying(engine: Engine, shape: StepShape) -> tuple[Uncaptured, Uncaptured]:
    """Have an engine's decode steps, and those with prompts in a shape, be replayed."""
    executor, vocab_size = engine._executor, engine.resolved.vocab_size
    assert executor is not None
    numbers = torch.from_numpy(step_numbers((), shape, executor._resolved.block_tokens, 3))
    decode = Uncaptured(partial(executor._decode, 3), vocab_size)
    mixed = Uncaptured(partial(executor._mixed_work, numbers, shape), vocab_size)
    executor._sizes = (3,)
    executor._captured = {3: decode.step}
    executor._mixed = {shape: (numbers, mixed.step)}
    return decode, mixed


@pytest.mark.slow
def test_replayed_steps_are_padded(tmp_path: Path, on_device: None) -> None:
    """What graphs capture, run as it is: padding changes neither ids nor real memory."""
    path = tiny_llama(tmp_path)
    plain, padded = load(path), load(path)
    decode, mixed = replaying(padded, StepShape(3, 3, 19, 19, 3))
    expected = generate(plain, SAMPLED, 8, 3)
    assert generate(padded, SAMPLED, 8, 3) == expected
    # The first step has a part of a prompt alone, and samples nothing.
    assert (decode.count, mixed.count) == (2, 4)
    real_blocks = [layer[1:] for layer in padded._runner.kv.layers]
    for mine, theirs in zip(real_blocks, plain._runner.kv.layers, strict=True):
        torch.testing.assert_close(mine, theirs[1:], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_warm_up_leaves_no_trace(tmp_path: Path, on_device: None) -> None:
    path = tiny_llama(tmp_path)
    fresh, warm = load(path), load(path)
    assert warm._executor is not None
    with torch.inference_mode():
        warm._executor.warm_up(chunk=9)
    assert all(not layer[1:].any() for layer in warm._runner.kv.layers)
    assert generate(warm, GREEDY, 8, 1) == generate(fresh, GREEDY, 8, 1)


def test_what_cannot_be_captured_is_left_out(
    tmp_path: Path,
    on_device: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor = load(tiny_llama(tmp_path))._executor
    assert executor is not None
    taken: list[int] = []

    def work(numbers: torch.Tensor, shape: StepShape, left: list[StepLogits]) -> torch.Tensor:
        left.append(_logits(torch.empty(shape.sampled, 1)))
        return numbers[-shape.sampled :]

    def fail_later(work: Callable[[], torch.Tensor], pool: object) -> tuple[None, torch.Tensor]:
        if len(taken) == 6:
            raise RuntimeError("no room for a seventh")
        taken.append(len(ids := work()))
        return None, ids

    monkeypatch.setattr(executor, "_mixed_work", work)
    monkeypatch.setattr(device_executor, "capture", fail_later)
    # So what the host launches meanwhile takes the device 130 tokens.
    monkeypatch.setattr(executor, "_launch_seconds", lambda chunk: 1.0)
    monkeypatch.setattr(executor, "_device_seconds", lambda captured: 1.55)
    with caplog.at_level(logging.WARNING):
        executor.capture_mixed(chunk=0)
        assert executor._mixed == {}
        executor.capture_mixed(chunk=200)
        assert not caplog.records
        found = [(shape.decode, shape.tokens) for shape in executor._mixed]
        # Of 128 tokens behind 3 rows the device would be done after the host.
        assert found == [(3, 200), (0, 200), (0, 128), (3, 64), (0, 64)]
        assert executor.graph_bytes == 5 * GRAPH_BYTES
        executor.capture_mixed(chunk=100)
    assert len(executor._mixed) == 6
    (record,) = caplog.records
    assert record.reason == "no room for a seventh"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("chunk", "seconds", "expected"),
    # Three sizes, and shapes of 64 and 200 tokens; of 128 too, whether or not the device is quick
    # here: the next timing may find it so.
    [(200, 9.0, 3 + 6), (200, 0.1, 3 + 6), (0, 9.0, 3)],
)
def test_what_all_captured_steps_take_is_planned_for(
    tmp_path: Path,
    on_device: None,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    seconds: float,
    expected: int,
) -> None:
    executor = load(tiny_llama(tmp_path))._executor
    assert executor is not None

    def decode(size: int, left: list[StepLogits]) -> torch.Tensor:
        raw = torch.zeros(size, 10)
        left[:] = [StepLogits(raw, raw)]
        return raw

    def work(_: torch.Tensor, shape: StepShape, left: list[StepLogits]) -> torch.Tensor:
        return decode(shape.sampled, left)

    monkeypatch.setattr(executor, "_decode", decode)
    monkeypatch.setattr(executor, "_mixed_work", work)
    monkeypatch.setattr(executor, "_launch_seconds", lambda chunk: 1.0)
    monkeypatch.setattr(executor, "_device_seconds", lambda captured: seconds)
    monkeypatch.setattr(device_executor, "graph_pool", lambda: None)
    monkeypatch.setattr(device_executor, "capture", lambda work, pool: (None, work()))
    assert executor.capture_largest(chunk) == expected * GRAPH_BYTES
    assert list(executor._captured) == [3]
    assert [shape.tokens for shape in executor._mixed] == [200][:chunk]


def test_padded_sizes() -> None:
    assert padded_sizes(1) == (1,)
    assert padded_sizes(10) == (1, 2, 4, 8, 10)
    assert padded_sizes(64)[-3:] == (32, 48, 64)
    assert padded_sizes(200) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 200)


def test_the_host_path_has_no_executor(tmp_path: Path) -> None:
    assert load(tiny_llama(tmp_path))._executor is None


def test_short_prompts_are_tried_before_a_model_serves(
    tmp_path: Path, on_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernels are, which no step of all rows has where there are few rows."""
    executor = load(tiny_llama(tmp_path))._executor
    assert executor is not None
    tokens: list[int] = []

    def run(items: tuple[ScheduledSequence, ...], extras: StepExtras) -> Callable[[], None]:
        tokens.append(sum(max(1, len(item.token_ids)) for item in items))
        return lambda: None

    monkeypatch.setattr(executor, "_run", run)
    executor.warm_up(50)
    assert tokens == [2 + 50, 3, 13, 50]
