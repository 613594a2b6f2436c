"""The scheduler on a PlanEngine, under random traffic in tiny pools.

The engine double asserts on every plan and chooses each token from the context it reads back
through the block table; so equal ids mean that no block was ever shared, reused or forgotten
wrongly, whatever was admitted, cancelled or preempted meanwhile.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from luce.kv.manager import KVManager
from luce.protocol.sampling import GrammarSpec, ReasoningBudget, SamplingParams
from luce.scheduler.limits import CheckpointPolicy, SchedulerLimits
from luce.scheduler.outcome import Admitted, NeverFits
from luce.scheduler.plan import FAILED_TOKEN, StepPlan, StepResult
from luce.scheduler.scheduler import Scheduler
from luce.testing.plan_engine import PlanEngine, generate_alone
from luce.testing.stepper import Stepper

VOCAB = 12

SIZES = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(3, 16),
        "block_tokens": st.sampled_from([1, 2, 4, 8]),
        "max_rows": st.integers(1, 5),
        "max_ctx": st.integers(4, 50),
        "chunk": st.sampled_from([1, 3, 4, 16, 64]),
        "max_prefill_sequences": st.integers(1, 4),
        "quantum": st.sampled_from([1, 2, 4, 16]),
        "depth": st.integers(0, 1),
        "prefix_cache": st.sampled_from([True, True, False]),
        "num_checkpoints": st.sampled_from([None, None, None, 0]),
    }
)
SIZES_WITH_STATES = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(8, 40),
        "block_tokens": st.sampled_from([1, 2, 4]),
        "max_rows": st.integers(2, 5),
        "max_ctx": st.integers(20, 60),
        "chunk": st.sampled_from([2, 4, 16]),
        "max_prefill_sequences": st.integers(1, 4),
        "quantum": st.sampled_from([1, 2, 4]),
        "depth": st.integers(0, 1),
        "prefix_cache": st.just(True),
        "num_checkpoints": st.integers(1, 6),
        "interval_tokens": st.sampled_from([1, 4, 10, 1000]),
        "min_gain_tokens": st.sampled_from([1, 1, 3, 8]),
        "opening_tokens": st.sampled_from([1, 3]),
    }
)
PROMPTS = st.one_of(
    st.builds(
        lambda num, tail: (*([1] * num), *tail),
        st.integers(1, 24),
        st.lists(st.integers(0, VOCAB - 1), max_size=2),
    ),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12).map(tuple),
)
IDS = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
BUDGETS = st.builds(
    lambda hint, close, **rest: ReasoningBudget(
        close_ids=close, forced_ids=(*hint, *close), **rest
    ),
    max_tokens=st.integers(0, 8),
    starts_open=st.booleans(),
    open_ids=st.one_of(st.just(()), st.integers(0, 3).map(lambda token: (token,))),
    hint=st.one_of(st.just(()), IDS),
    close=IDS,
)
SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 30),
    seed=st.integers(0, 3),
    stop_token_ids=st.sampled_from([(), (), (5,), (2, 3)]),
    grammar=st.sampled_from([None, None, GrammarSpec("start: /.*/")]),
    reasoning=st.one_of(st.none(), BUDGETS),
    logprobs=st.sampled_from([None, 0]),
)


def _stepper(sizes: dict[str, Any]) -> Stepper:
    policy = CheckpointPolicy(
        sizes.get("interval_tokens", 1024),
        sizes.get("min_gain_tokens", 64),
        sizes.get("opening_tokens", 8),
    )
    limits = SchedulerLimits(
        sizes["max_rows"],
        sizes["max_ctx"],
        sizes["chunk"],
        sizes["max_prefill_sequences"],
        sizes["quantum"],
        policy,
    )
    num_checkpoints = sizes.get("num_checkpoints")
    kv = KVManager(
        sizes["num_blocks"],
        sizes["block_tokens"],
        prefix_cache=sizes["prefix_cache"],
        num_checkpoints=num_checkpoints,
    )
    ticks = itertools.count(1)
    scheduler = Scheduler(kv, limits, lambda: next(ticks), lambda: 0)
    engine = _FragileEngine(sizes["block_tokens"], VOCAB, num_checkpoints)
    return Stepper(scheduler, engine, sizes["depth"])


class _FragileEngine(PlanEngine):
    """Its rows fail on demand.

    Attributes:
        breaking_row: fails the next time it is sampled.
        num_failures: how often a row has failed.
    """

    breaking_row: int | None = None
    num_failures = 0

    def run(self, plan: StepPlan) -> StepResult:
        result = super().run(plan)
        token_ids, logprobs = list(result.token_ids), result.logprobs
        rows = [item.row for item in plan.items if item.sample]
        if self.breaking_row in rows:
            token_ids[rows.index(self.breaking_row)] = FAILED_TOKEN
            self.breaking_row = None
            self.num_failures += 1
        return StepResult(result.step, tuple(token_ids), logprobs)


class SchedulerMachine(RuleBasedStateMachine):
    """Random admissions, cancels and steps; in the end everyone has what it would have alone."""

    @initialize(sizes=SIZES)
    def build(self, sizes: dict[str, Any]) -> None:
        self.begin(sizes)

    def begin(self, sizes: dict[str, Any]) -> None:
        self.sizes = sizes
        self.stepper = _stepper(sizes)
        assert isinstance(self.stepper.engine, _FragileEngine)
        self.engine = self.stepper.engine
        self.max_seq_tokens = self.stepper.scheduler.max_seq_tokens
        self.requests: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}
        self.cancelled: set[str] = set()
        self.names = itertools.count()

    @rule(prompt=PROMPTS, sampling=SAMPLING)
    def submit(self, prompt: tuple[int, ...], sampling: SamplingParams) -> None:
        name = f"r{next(self.names)}"
        was_idle = not self.stepper.scheduler.has_work
        answer = self.stepper.submit(name, prompt, sampling)
        fits = len(prompt) < self.max_seq_tokens
        assert isinstance(answer, NeverFits) == (not fits)
        if fits and was_idle:
            assert isinstance(answer, Admitted), "what fits is admitted when nobody is there"
        if isinstance(answer, Admitted):
            self.requests[name] = (prompt, sampling)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        if name not in self.stepper.endings:
            self.cancelled.add(name)
        self.stepper.scheduler.cancel(name)

    @rule(row=st.integers(0, 4))
    def break_row(self, row: int) -> None:
        self.engine.breaking_row = row

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.stepper.step()

    @invariant()
    def books_are_right(self) -> None:
        self.stepper.scheduler.check_integrity()

    @invariant()
    def budget_is_kept(self) -> None:
        for plan in self.stepper.plans[-6:]:
            assert sum(len(item.token_ids) for item in plan.items) <= self.sizes["chunk"]
            assert len(plan.items) <= self.sizes["max_rows"]

    def teardown(self) -> None:
        if not hasattr(self, "stepper"):
            return
        stepper = self.stepper
        asked = sum(len(prompt) + params.max_tokens for prompt, params in self.requests.values())
        stepper.run(max_steps=20 * asked + 20)
        assert stepper.num_retired == dict.fromkeys(self.requests, 1)
        for name, (prompt, sampling) in self.requests.items():
            self._check_ending(name, prompt, sampling)
        failed = [gone for gone in stepper.retired.values() if gone.finish == "error"]
        assert len(failed) <= self.engine.num_failures
        stats = stepper.scheduler.stats()
        assert stats.kv.free_blocks + stats.kv.cached_blocks == stats.kv.total_blocks
        assert (stats.running, stats.preempted) == (0, 0)

    def _check_ending(self, name: str, prompt: tuple[int, ...], sampling: SamplingParams) -> None:
        ids, finish = generate_alone(prompt, sampling, self.max_seq_tokens, VOCAB)
        got, gone = self.stepper.outputs[name], self.stepper.retired[name]
        assert gone.cached_tokens < len(prompt)
        if gone.finish == "error" or name in self.cancelled:
            assert gone.finish in ("cancelled", "error")
            assert got == ids[: len(got)]
            return
        assert (got, gone.finish, self.stepper.endings[name]) == (ids, finish, finish)
        assert gone.completion_tokens == len(ids) + (finish == "stop")


SchedulerMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
TestScheduler = SchedulerMachine.TestCase


class MachineWithStates(SchedulerMachine):
    """The same for a model with recurrent layers, where prefixes are found more often."""

    @initialize(sizes=SIZES_WITH_STATES)
    def build(self, sizes: dict[str, Any]) -> None:
        self.begin(sizes)


MachineWithStates.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
TestSchedulerWithStates = MachineWithStates.TestCase


@settings(max_examples=60, deadline=None)
@given(
    num_shared=st.integers(1, 40),
    tails=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8, unique=True),
    chunk=st.sampled_from([1, 4, 7, 64]),
    depth=st.integers(0, 1),
)
def test_a_burst_computes_each_full_shared_block_once(
    num_shared: int, tails: list[int], chunk: int, depth: int
) -> None:
    block_tokens = 4
    sizes = {
        "num_blocks": 200,
        "block_tokens": block_tokens,
        "max_rows": 8,
        "max_ctx": 100,
        "chunk": chunk,
        "max_prefill_sequences": 4,
        "quantum": 4,
        "depth": depth,
        "prefix_cache": True,
    }
    stepper = _stepper(sizes)
    for tail in tails:
        stepper.submit(f"r{tail}", (*([1] * num_shared), 100 + tail), SamplingParams(1, seed=0))
    stepper.run()
    once = num_shared // block_tokens * block_tokens
    assert stepper.engine.prefill_tokens == once + len(tails) * (num_shared + 1 - once)


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    chunk=st.sampled_from([1, 5, 16]),
    depth=st.integers(0, 1),
)
def test_a_decoder_is_in_every_step_whatever_else_is_computed(
    prompts: list[int], chunk: int, depth: int
) -> None:
    sizes = {
        "num_blocks": 300,
        "block_tokens": 4,
        "max_rows": 6,
        "max_ctx": 500,
        "chunk": chunk,
        "max_prefill_sequences": 4,
        "quantum": 4,
        "depth": depth,
        "prefix_cache": True,
    }
    stepper = _stepper(sizes)
    stepper.submit("decoder", (1,), SamplingParams(400, seed=0))
    stepper.step()
    for order, num in enumerate(prompts):
        stepper.submit(f"r{order}", tuple(range(order, order + num)), SamplingParams(3, seed=0))
    while len(stepper.endings) < len(prompts):
        plan = stepper.step()
        assert plan is not None
        assert plan.items[0].row == 0
    tokens_so_far = len(stepper.outputs["decoder"])
    assert tokens_so_far >= len(stepper.plans) - depth


@settings(max_examples=60, deadline=None)
@given(
    num_long=st.integers(1, 12),
    num_before=st.integers(0, 6),
    num_short=st.integers(1, 4),
    chunk=st.sampled_from([4, 6, 16, 64]),
    max_prefill_sequences=st.integers(1, 4),
    depth=st.integers(0, 1),
)
def test_a_short_prompt_waits_no_longer_than_everybody_takes_a_turn(
    num_long: int,
    num_before: int,
    num_short: int,
    chunk: int,
    max_prefill_sequences: int,
    depth: int,
) -> None:
    sizes = {
        "num_blocks": 12 * 130 + 20,
        "block_tokens": 4,
        "max_rows": 13,
        "max_ctx": 600,
        "chunk": chunk,
        "max_prefill_sequences": max_prefill_sequences,
        "quantum": 4,
        "depth": depth,
        "prefix_cache": True,
    }
    stepper = _stepper(sizes)
    for order in range(num_long):
        prompt = (20 + order, *([1] * 500))
        assert isinstance(
            stepper.submit(f"long{order}", prompt, SamplingParams(1, seed=0)), Admitted
        )
    for _ in range(num_before):
        stepper.step()
    stepper.submit("short", tuple(range(100, 100 + num_short)), SamplingParams(1, seed=0))
    steps = 0
    while not stepper.outputs["short"]:
        stepper.step()
        steps += 1
    assert steps <= num_long + 1 + depth
