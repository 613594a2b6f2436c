"""The engine as the worker sees it: load, errors, steps."""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from luce.engine import assembly
from luce.engine import engine as module
from luce.engine.engine import Engine, PendingStep
from luce.engine.options import EngineOptions
from luce.errors import (
    DeviceOutOfMemory,
    InternalError,
    InvalidRequest,
    ModelFileError,
    PlacementError,
    UsageError,
)
from luce.loaders.opening import open_checkpoint
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import FAILED_TOKEN, RowStart, ScheduledSequence, StepPlan
from luce.testing.tiny_models import tiny_llama, tiny_qwen2

GREEDY = SamplingParams(max_tokens=10)
PROMPT = tuple(range(5, 25))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


def load(path: Path, **options: object) -> Engine:
    wanted = EngineOptions(path=path, threads=1, **options)  # type: ignore[arg-type]
    return Engine.load(wanted, lambda *_: None)


def first_plan(step: int = 1, **start: object) -> StepPlan:
    row_start = replace(RowStart(0, GREEDY, 0, PROMPT, len(PROMPT)), **start)  # type: ignore[arg-type]
    return StepPlan(step, (row_start,), (ScheduledSequence(0, 0, PROMPT, (3, 4), sample=True),))


def test_resolved(path: Path) -> None:
    found = load(path, max_ctx=200, max_concurrency=3, block_tokens=8).resolved
    assert (found.architecture, found.device, found.dtype) == ("llama", "cpu:0", "float32")
    assert (found.max_ctx, found.max_rows, found.block_tokens) == (200, 3, 8)
    assert (found.kv_pool_tokens, found.num_blocks) == (600, 76)
    assert found.vocab_size == open_checkpoint(path).hparams.vocab_size
    # 2 * 3 layers * 2 heads * 32 * 4 bytes a token
    assert found.kv_bytes == 76 * 8 * 1536
    assert found.weights_bytes > 0
    assert any(name.startswith("attention=") for name in found.kernels)


def test_choices_are_logged_with_their_reasons(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "luce.engine.assembly")
    load(path, dtype="bfloat16")
    fields = {record.op: record.__dict__ for record in caplog.records}
    assert fields["linear"]["chosen"] == "ref"
    assert fields["linear"]["refused"] == "onednn: made for float32"


def test_progress_rises_to_the_end(path: Path) -> None:
    events: list[tuple[str, int, int]] = []
    Engine.load(EngineOptions(path=path, threads=1), lambda *event: events.append(event))
    done = [event[1] for event in events]
    assert done == sorted(done)
    assert {event[0] for event in events} == {"weights"}
    assert events[-1][1] == events[-1][2] > 0


def test_steps(path: Path) -> None:
    engine = load(path)
    engine.warm_up()
    pending = engine.step(first_plan())
    assert isinstance(pending, PendingStep)
    first = pending.result()
    assert first.step == 1
    assert pending.result() == first
    decode = ScheduledSequence(0, 20, (), (3, 4), sample=True, output_index=1)
    second = engine.step(StepPlan(2, (), (decode,))).result()
    # The same by recomputing: prompt and first token as one prompt.
    again = (*PROMPT, first.token_ids[0])
    item = ScheduledSequence(1, 0, again, (5, 6), sample=True, output_index=1)
    start = RowStart(1, GREEDY, 0, again, 20)
    assert engine.step(StepPlan(3, (start,), (item,))).result().token_ids == second.token_ids


def test_a_chunk_that_samples_nothing(path: Path) -> None:
    plan = first_plan()
    silent = StepPlan(1, plan.starts, (replace(plan.items[0], sample=False),))
    assert load(path).step(silent).result().token_ids == ()


def test_warm_up_changes_nothing(path: Path) -> None:
    cold, warm = load(path), load(path)
    warm.warm_up()
    assert cold.step(first_plan()).result() == warm.step(first_plan()).result()
    kv = warm._runner.kv.layers[0]
    assert not kv[5:].any()


def test_bad_plan_changes_nothing(path: Path) -> None:
    engine = load(path)
    expected = load(path).step(first_plan()).result()
    bad = replace(first_plan().items[0], block_table=(3, 99999))
    with pytest.raises(InternalError, match="block id"):
        engine.step(StepPlan(1, first_plan().starts, (bad,)))
    with pytest.raises(InvalidRequest):
        engine.step(first_plan(sampling=replace(GREEDY, logit_bias={-5: 1.0})))
    assert engine.step(first_plan()).result() == expected


def damage(engine: Engine, token_id: int) -> None:
    table = engine._runner.model._embedding.table  # type: ignore[attr-defined]
    with torch.inference_mode():
        table[token_id] = torch.nan


def test_logits_that_are_not_numbers_fail_their_row_alone(path: Path) -> None:
    engine, healthy = load(path), load(path)
    damage(engine, 4)
    sick = (4, *PROMPT)
    starts = (RowStart(0, GREEDY, 0, sick, 21), RowStart(1, GREEDY, 0, PROMPT, 20))
    items = (
        ScheduledSequence(0, 0, sick, (3, 4), sample=True),
        ScheduledSequence(1, 0, PROMPT, (5, 6), sample=True),
    )
    expected = healthy.step(first_plan()).result().token_ids
    assert engine.step(StepPlan(1, starts, items)).result().token_ids == (FAILED_TOKEN, *expected)
    # Its row and blocks serve the next sequence as if nothing had been.
    assert engine.step(first_plan(2)).result().token_ids == expected
    decode = ScheduledSequence(0, 20, (), (3, 4), sample=True, output_index=1)
    plan = StepPlan(3, (), (decode,))
    assert engine.step(plan).result() == healthy.step(plan).result()


@pytest.mark.parametrize("temperature", [1e-300, 1e-46, 1e-38, 5e-31, 1e-20])
@pytest.mark.parametrize("top_k", [0, 5])
def test_a_tiny_temperature_is_greedy(path: Path, temperature: float, top_k: int) -> None:
    engine = load(path)
    greedy = engine.step(first_plan()).result().token_ids
    sampling = replace(GREEDY, temperature=temperature, top_k=top_k)
    assert engine.step(first_plan(2, sampling=sampling)).result().token_ids == greedy


@pytest.mark.parametrize("temperature", [1e30, 1e39, 1e300])
def test_a_huge_temperature_is_uniform_over_what_top_k_keeps(
    path: Path, temperature: float
) -> None:
    engine = load(path)
    sampling = replace(GREEDY, temperature=temperature, top_k=5)
    found = [
        engine.step(first_plan(seed, sampling=sampling, seed=seed)).result().token_ids[0]
        for seed in range(1, 60)
    ]
    assert min(found) >= 0
    assert len(set(found)) == 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_make_no_numbers_do_not_warm_up(path: Path, dtype: str) -> None:
    engine = load(path, dtype=dtype)
    damage(engine, 0)
    with pytest.raises(ModelFileError, match=f"{path.name}.*not finite numbers.*dtype {dtype}"):
        engine.warm_up()


def test_out_of_memory_in_a_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(path)

    def exhausted(*_: object) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(module, "build_inputs", exhausted)
    with pytest.raises(DeviceOutOfMemory, match="device ran out of memory; try again") as caught:
        engine.step(first_plan())
    assert "allocate" not in str(caught.value), "the allocator's words are for the log"
    assert "allocate" in str(caught.value.__cause__)


def test_an_error_of_ours_in_a_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(path)

    def broken(*_: object) -> None:
        torch.zeros(2) @ torch.zeros(3)

    monkeypatch.setattr(module, "build_inputs", broken)
    with pytest.raises(InternalError, match="step 1 failed"):
        engine.step(first_plan())


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        load(tmp_path / "nothing.gguf")


def test_no_such_device(path: Path) -> None:
    with pytest.raises(PlacementError, match="no such device"):
        load(path, device="cuda:7")
    with pytest.raises(UsageError, match="unknown device"):
        load(path, device="tpu")


def test_context_longer_than_the_models(path: Path) -> None:
    with pytest.raises(UsageError, match="--max-ctx 513"):
        load(path, max_ctx=513)


def test_pool_larger_than_the_memory(path: Path) -> None:
    with pytest.raises(PlacementError, match="not enough memory"):
        load(path, kv_pool_tokens=1 << 40)


def test_memory_gone_while_loading(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(assembly, "kv_tensors", exhausted)
    with pytest.raises(PlacementError, match="ran out of memory while loading"):
        load(path)


def test_tied_table_of_a_narrower_type(tmp_path: Path) -> None:
    """The table stays float16 for look-ups, the output matrix is packed from the same values."""
    narrow = load(tiny_qwen2(tmp_path / "f16", quant="F16"))
    table = narrow._runner.model._embedding.table  # type: ignore[attr-defined]
    assert table.dtype == torch.float16
    narrow.step(first_plan()).result()


def test_tied_weights_are_not_stored_twice_where_they_need_not_be(path: Path) -> None:
    tied = load(path, dtype="bfloat16").resolved.weights_bytes
    packed = load(path).resolved.weights_bytes
    embedding = open_checkpoint(path).hparams.vocab_size * 64
    rotary = 512 * 16 * 2 * 4
    assert packed - rotary == 2 * (tied - rotary) + 4 * embedding


def test_close_gives_the_memory_back(path: Path) -> None:
    engine = load(path)
    cache = weakref.ref(engine._runner.kv)
    engine.step(first_plan()).result()
    engine.close()
    gc.collect()
    assert cache() is None
