"""The same ids however the work is laid out: batch, chunks, blocks, rows, neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from engine_harness import (
    GREEDY,
    Driver,
    Request,
    load_engine,
    mixed_logits,
    random_ids,
    relative_error,
    start_row,
)
from reference import reference_greedy, reference_logits, reference_model

from luce.engine.engine import Engine
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import ScheduledSequence
from luce.testing.tiny_models import (
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
SAMPLED = SamplingParams(
    max_tokens=100, temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.2, rep_window=20
)
LENGTHS = [1, 3, 15, 16, 17, 31, 33, 47, 60, 75, 90, 110, 5, 8, 64, 100]


@pytest.fixture(scope="module", params=["qwen3", "qwen35moe"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a family with keys and values alone, and of one with recurrent states and experts."""
    make = FAMILIES[request.param]
    return make(tmp_path_factory.mktemp(request.param), container="safetensors")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load_engine(folder, num_checkpoints=2)


def prompts() -> list[list[int]]:
    return [random_ids(length, 280, seed=length) for length in LENGTHS]


def alone(engine: Engine, make: Callable[[int], Request]) -> list[list[int]]:
    return [Driver(engine).run([make(index)])[0] for index in range(len(LENGTHS))]


def greedy(index: int) -> Request:
    return Request(prompts()[index], max_tokens=20)


def sampled(index: int) -> Request:
    return Request(prompts()[index], max_tokens=20, sampling=SAMPLED, seed=index)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_the_reference(tmp_path: Path, family: str) -> None:
    folder = FAMILIES[family](tmp_path, container="safetensors")
    model, engine = reference_model(folder), load_engine(folder)
    requests = [greedy(index) for index in range(6)]
    expected = [reference_greedy(model, request.prompt, 20) for request in requests]
    assert Driver(engine).run(requests) == expected
    assert len({tuple(ids) for ids in expected}) > 3, "the models all say the same"


@pytest.mark.parametrize("make", [greedy, sampled])
@pytest.mark.parametrize("batch", [4, 16])
def test_batch_does_not_matter(engine: Engine, make: Callable[[int], Request], batch: int) -> None:
    expected = alone(engine, make)
    for first in range(0, len(LENGTHS), batch):
        requests = [make(index) for index in range(first, first + batch)]
        assert Driver(engine).run(requests) == expected[first : first + batch]


@pytest.mark.parametrize("make", [greedy, sampled])
@pytest.mark.parametrize("chunk", [1, 7, 16, 50])
def test_chunk_size_does_not_matter(
    engine: Engine, make: Callable[[int], Request], chunk: int
) -> None:
    expected = alone(engine, make)
    requests = [make(index) for index in range(len(LENGTHS))]
    assert Driver(engine, chunk=chunk).run(requests) == expected


def test_scattered_blocks_and_late_arrivals(engine: Engine) -> None:
    """Mixed steps: prompts arrive while others decode, on blocks in random order."""
    expected = alone(engine, greedy)
    requests = [replace(greedy(index), arrival=2 * index) for index in range(len(LENGTHS))]
    assert Driver(engine, chunk=20, shuffle=1).run(requests) == expected


def test_cancelled_neighbour_and_reused_row(engine: Engine) -> None:
    """A sequence that leaves early changes nobody, and leaves nothing to who takes its row."""
    expected = alone(engine, sampled)
    driver = Driver(engine, chunk=16, shuffle=2)
    leaver = replace(sampled(9), leave_after=5, seed=77)
    biased = replace(leaver, sampling=replace(SAMPLED, logit_bias={3: 50.0}), output=[])
    driver.run([leaver, biased, *(sampled(index) for index in (0, 1))])
    assert set(biased.output) == {3}
    requests = [sampled(index) for index in range(len(LENGTHS))]
    assert driver.run(requests) == expected


@pytest.mark.parametrize("make", [greedy, sampled])
def test_preemption_is_invisible(engine: Engine, make: Callable[[int], Request]) -> None:
    expected = alone(engine, make)
    requests = [replace(make(index), preempt_at=1 + index % 12) for index in range(len(LENGTHS))]
    assert Driver(engine, chunk=24, shuffle=3).run(requests) == expected


def test_prefix_from_shared_blocks(engine: Engine) -> None:
    """A second sequence may start behind blocks that another one computed, and its state."""
    prefix, tail = random_ids(32, 280, seed=5), random_ids(9, 280, seed=6)
    whole = [*prefix, *tail]
    shared, own = (3, 9), (3, 9, 4)
    checkpoint = 1 if engine.resolved.num_checkpoints else None
    first = ScheduledSequence(0, 0, tuple(prefix), shared, sample=True, save_checkpoint=checkpoint)
    mixed_logits(engine, [first])
    # The first goes on; what was saved of it stays.
    mixed_logits(engine, [ScheduledSequence(0, 32, (8, 9), (3, 9, 8), sample=True)])
    start_row(engine, 1, checkpoint)
    second = ScheduledSequence(1, 32, tuple(tail), own, sample=True)
    found = mixed_logits(engine, [second])[0]
    alone_item = ScheduledSequence(0, 0, tuple(whole), (5, 6, 7), sample=True)
    expected = mixed_logits(engine, [alone_item])[0][32:]
    assert relative_error(found, expected) < 1e-5


def test_mixed_step_against_the_reference(folder: Path, engine: Engine) -> None:
    """Long and short decode rows (several groups) beside fresh and continued chunks."""
    model = reference_model(folder)
    contexts = [random_ids(length, 280, seed=length + 1) for length in (300, 17, 2, 40, 65, 130)]
    tables = [tuple(range(1 + 30 * index, 31 + 30 * index)) for index in range(6)]
    before = [299, 16, 1, 39, 0, 100]
    for row, (ids, table, count) in enumerate(zip(contexts, tables, before, strict=True)):
        if count:
            item = ScheduledSequence(row, 0, tuple(ids[:count]), table, sample=True)
            mixed_logits(engine, [item])
    items = [
        ScheduledSequence(row, count, tuple(ids[count:]), table, sample=True)
        for row, (ids, table, count) in enumerate(zip(contexts, tables, before, strict=True))
    ]
    found = mixed_logits(engine, items)
    for logits, ids, count in zip(found, contexts, before, strict=True):
        expected = reference_logits(model, ids)[count:]
        assert relative_error(logits, expected) < 1e-4


def test_seed_zero_is_a_seed(engine: Engine) -> None:
    first, again, other = (
        Driver(engine).run([replace(sampled(4), seed=seed)])[0] for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_greedy_rows_beside_sampled_ones(engine: Engine) -> None:
    greedy_alone, sampled_alone = alone(engine, greedy), alone(engine, sampled)
    requests = [(greedy if index % 2 else sampled)(index) for index in range(len(LENGTHS))]
    expected = [
        (greedy_alone if index % 2 else sampled_alone)[index] for index in range(len(LENGTHS))
    ]
    assert Driver(engine, chunk=30).run(requests) == expected
    assert GREEDY.temperature == 0
