"""Scheduler and engine together on hybrids: checkpoints, waiting for them, preemption and cancel
change no id of anybody."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from engine_harness import load_engine, random_ids
from resident_worker import ResidentWorker

from luce.engine.engine import Engine, PendingStep
from luce.kv.manager import KVManager
from luce.protocol.sampling import SamplingParams
from luce.scheduler.limits import CheckpointPolicy, SchedulerLimits
from luce.scheduler.outcome import Admitted, SchedulerStats
from luce.scheduler.plan import StepPlan
from luce.scheduler.scheduler import Scheduler
from luce.testing.tiny_models import tiny_qwen35, tiny_qwen35moe

CHECKPOINTS = 12
POLICY = CheckpointPolicy(interval_tokens=64, min_gain_tokens=16, opening_tokens=4)
SHARED = random_ids(70, 280, seed=1)
PROMPTS = {
    "a": [*SHARED, *random_ids(9, 280, seed=2)],
    "b": [*SHARED, *random_ids(30, 280, seed=3)],
    "c": [*SHARED[:40], *random_ids(50, 280, seed=4)],
    "d": random_ids(33, 280, seed=5),
    "e": [*SHARED, *random_ids(2, 280, seed=6)],
    "f": random_ids(90, 280, seed=7),
}
PARAMS = SamplingParams(max_tokens=40, temperature=0.0)


@dataclass
class _Server:
    """A worker's loop without its messages, over a fresh pool on an engine.

    Attributes:
        engine: its memory is used anew.
        depth: steps under way behind the running one.
        num_blocks: of the pool.
        num_checkpoints: 0: nothing is ever gone on from.
    """

    engine: Engine
    depth: int = 0
    num_blocks: int = 60
    num_checkpoints: int = CHECKPOINTS
    chunk: int = 48
    outputs: dict[str, list[int]] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kv = KVManager(self.num_blocks, 16, num_checkpoints=self.num_checkpoints)
        ticks = itertools.count(1)
        limits = SchedulerLimits(4, 256, self.chunk, 4, 16, POLICY)
        self.scheduler = Scheduler(kv, limits, lambda: next(ticks), lambda: 0)
        self._under_way: deque[tuple[StepPlan, PendingStep]] = deque()

    def submit(self, name: str) -> None:
        answer = self.scheduler.submit(name, tuple(PROMPTS[name]), PARAMS)
        assert isinstance(answer, Admitted), answer
        self.outputs[name] = []

    def step(self) -> None:
        plan = self.scheduler.plan()
        if plan is not None:
            self._under_way.append((plan, self.engine.step(plan)))
        if self._under_way and (plan is None or len(self._under_way) > self.depth):
            plan, pending = self._under_way.popleft()
            outcome = self.scheduler.apply(plan, pending.result())
            for delta in outcome.deltas:
                self.outputs[delta.request_id] += delta.token_ids
            for gone in outcome.retired:
                self.cached[gone.request_id] = gone.cached_tokens

    def run(self) -> SchedulerStats:
        while self.scheduler.has_work or self._under_way:
            self.step()
        self.scheduler.check_integrity()
        return self.scheduler.stats()


@pytest.fixture(
    scope="module",
    params=[tiny_qwen35, tiny_qwen35moe, partial(tiny_qwen35moe, quant="Q8_0")],
    ids=["dense", "moe", "quantised"],
)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    path: Path = request.param(tmp_path_factory.mktemp("hybrid"))
    made = load_engine(
        path, max_concurrency=4, max_ctx=256, kv_pool_tokens=1024, num_checkpoints=CHECKPOINTS
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(engine: Engine) -> dict[str, list[int]]:
    """What each request gets with the engine to itself, computed from its first token on."""
    outputs = {}
    for name in PROMPTS:
        server = _Server(engine, num_checkpoints=0, chunk=256)
        server.submit(name)
        server.run()
        outputs[name] = server.outputs[name]
    assert len({tuple(each) for each in outputs.values()}) == len(PROMPTS)
    return outputs


@pytest.mark.parametrize("depth", [0, 1])
def test_prompts_that_come_again(engine: Engine, alone: dict[str, list[int]], depth: int) -> None:
    server = _Server(engine, depth)
    for name in ("a", "b", "c", "e"):
        server.submit(name)
        server.run()
    assert server.cached == {"a": 0, "b": 64, "c": 0, "e": 64}
    assert server.outputs == {name: alone[name] for name in server.outputs}
    server.submit("c")
    server.run()
    assert server.cached["c"] == 80
    assert server.outputs["c"] == alone["c"]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_burst_waits_for_checkpoints(
    engine: Engine, alone: dict[str, list[int]], depth: int
) -> None:
    server = _Server(engine, depth)
    for name in ("a", "b", "c", "e"):
        server.submit(name)
    stats = server.run()
    assert server.outputs == {name: alone[name] for name in server.outputs}
    assert server.cached == {"a": 0, "b": 64, "c": 32, "e": 64}
    assert stats.kv.restored_checkpoints == 3


@pytest.mark.parametrize("depth", [0, 1])
def test_preempted_and_cancelled_in_a_small_pool(
    engine: Engine, alone: dict[str, list[int]], depth: int
) -> None:
    server = _Server(engine, depth, num_blocks=19)
    for name in ("a", "d", "f"):
        server.submit(name)
    for _ in range(30):
        server.step()
    server.scheduler.cancel("a")
    stats = server.run()
    assert stats.preemptions > 0
    assert stats.kv.restored_checkpoints > 0
    assert {name: server.outputs[name] for name in "df"} == {name: alone[name] for name in "df"}
    assert server.outputs["a"] == alone["a"][: len(server.outputs["a"])]


def test_checkpoints_are_full_and_everybody_goes_on(
    engine: Engine, alone: dict[str, list[int]]
) -> None:
    server = _Server(engine, depth=1, num_checkpoints=1)
    for _ in range(2):
        for name in ("b", "f", "c"):
            server.submit(name)
        server.run()
        assert server.outputs == {name: alone[name] for name in server.outputs}


def test_a_worker_takes_checkpoints_by_itself(tmp_path: Path) -> None:
    path = tiny_qwen35(tmp_path)
    outcomes = {}
    for prefix_cache in (True, False):
        worker = ResidentWorker(path, prefix_cache=prefix_cache, max_ctx=256)
        try:
            outcomes[prefix_cache] = [worker.generate(PROMPTS["b"]) for _ in range(2)]
            stats = worker.model.scheduler.stats().kv
            assert stats.total_checkpoints == (9 if prefix_cache else 0)
            assert stats.restored_checkpoints == int(prefix_cache)
        finally:
            worker.close()
    assert [cached for _, cached in outcomes[True]] == [0, 80]
    assert [cached for _, cached in outcomes[False]] == [0, 0]
    texts = [tuple(ids) for runs in outcomes.values() for ids, _ in runs]
    assert len(set(texts)) == 1


def test_the_next_turn_of_a_chat_goes_on_from_the_answer(tmp_path: Path) -> None:
    path = tiny_qwen35(tmp_path)
    outcomes = {}
    for prefix_cache in (True, False):
        worker = ResidentWorker(path, prefix_cache=prefix_cache, max_ctx=256)
        try:
            first, _ = worker.generate(PROMPTS["d"], max_tokens=40)
            turn = [*PROMPTS["d"], *first, *random_ids(9, 280, seed=9)]
            outcomes[prefix_cache] = (first, worker.generate(turn))
        finally:
            worker.close()
    assert outcomes[True][0] == outcomes[False][0]
    assert outcomes[True][1][0] == outcomes[False][1][0]
    # 33 of the prompt and 39 of the answer were computed: four blocks of 16, and 8 tokens.
    assert (outcomes[True][1][1], outcomes[False][1][1]) == (64, 0)
