"""Experts' counters: of requests only, and kept when a model leaves its device."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.engine.engine import Engine
from luce.engine.eviction import EvictionLevel
from luce.engine.options import EngineOptions
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.testing.tiny_models import tiny_llama, tiny_qwen3moe

PROMPT = tuple(range(5, 25))


def load(path: Path) -> Engine:
    engine = Engine.load(EngineOptions(path=path, threads=1, dtype="float32"), lambda *_: None)
    engine.warm_up()
    return engine


def read_prompt(engine: Engine) -> None:
    start = RowStart(0, SamplingParams(max_tokens=10), 0, PROMPT, len(PROMPT))
    item = ScheduledSequence(0, 0, PROMPT, (3, 4), sample=True)
    engine.step(StepPlan(1, (start,), (item,))).result()


def test_each_token_counts_for_each_of_its_experts_and_warming_up_does_not(tmp_path: Path) -> None:
    engine = load(tiny_qwen3moe(tmp_path))
    experts = engine._blueprint.hparams.experts
    assert experts is not None
    loads = engine.expert_loads()
    assert loads is not None
    assert loads.shape == (engine.resolved.num_layers, experts.num_experts)
    assert loads.sum() == 0
    read_prompt(engine)
    loads = engine.expert_loads()
    assert loads is not None
    assert loads.sum(axis=1).tolist() == (
        [len(PROMPT) * experts.num_per_token] * engine.resolved.num_layers
    )


@pytest.mark.parametrize("level", ["cold", "host", "warm"])
def test_counts_go_on_where_they_were(tmp_path: Path, level: EvictionLevel) -> None:
    engine = load(tiny_qwen3moe(tmp_path))
    read_prompt(engine)
    once = engine.expert_loads()
    assert once is not None
    for times in (1, 2):
        engine.evict(level, lambda: None)
        gone = engine.expert_loads()
        engine.reinstate()
        back = engine.expert_loads()
        assert gone is not None
        assert back is not None
        assert gone.tolist() == back.tolist() == (times * once).tolist()
        read_prompt(engine)


def test_a_model_without_mixtures_has_none(tmp_path: Path) -> None:
    engine = load(tiny_llama(tmp_path))
    read_prompt(engine)
    assert engine.expert_loads() is None
    engine.evict("cold", lambda: None)
    assert engine.expert_loads() is None
