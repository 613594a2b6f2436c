"""A scheduler on a PlanEngine, sized by the test."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from luce.kv.manager import KVManager
from luce.scheduler.limits import CheckpointPolicy, SchedulerLimits
from luce.scheduler.scheduler import Scheduler
from luce.testing.plan_engine import PlanEngine
from luce.testing.stepper import Stepper

DEFAULT_POLICY = CheckpointPolicy()


@pytest.fixture
def make_stepper() -> Callable[..., Stepper]:
    def make(
        *,
        num_blocks: int = 100,
        block_tokens: int = 4,
        max_rows: int = 4,
        max_ctx: int = 200,
        chunk: int = 16,
        max_prefill_sequences: int = 4,
        quantum: int = 4,
        depth: int = 0,
        prefix_cache: bool = True,
        entropy: int = 77,
        num_checkpoints: int | None = None,
        checkpoints: CheckpointPolicy = DEFAULT_POLICY,
    ) -> Stepper:
        limits = SchedulerLimits(
            max_rows, max_ctx, chunk, max_prefill_sequences, quantum, checkpoints
        )
        kv = KVManager(
            num_blocks, block_tokens, prefix_cache=prefix_cache, num_checkpoints=num_checkpoints
        )
        ticks = itertools.count(1)
        scheduler = Scheduler(kv, limits, lambda: next(ticks), lambda: entropy)
        return Stepper(scheduler, PlanEngine(block_tokens, num_checkpoints=num_checkpoints), depth)

    return make
