"""Checkpoints of recurrent states: always the state their key says, never lost, never aliased.

`CheckpointMachine` keeps slots and row states as an engine would, with steps under way. The
tests behind it drive the whole scheduler where prefixes are shared, long and worth saving; random
traffic in tiny pools is in `test_scheduler.py`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from luce.kv.block_table import BlockTable
from luce.kv.manager import KVManager
from luce.protocol.sampling import SamplingParams
from luce.scheduler.limits import CheckpointPolicy, SchedulerLimits
from luce.scheduler.outcome import Admitted
from luce.scheduler.scheduler import Scheduler
from luce.testing.plan_engine import PlanEngine, generate_alone
from luce.testing.stepper import Stepper

TOKENS = st.integers(0, 1)
VOCAB = 12


@dataclass(eq=False)
class Holder:
    """A sequence: `num_scheduled` of its tokens are in a row's state, `under_way` not applied."""

    table: BlockTable
    token_ids: list[int]
    num_scheduled: int
    is_started: bool = False
    state: tuple[int, ...] = ()
    under_way: list[int] = field(default_factory=list)


class CheckpointMachine(RuleBasedStateMachine):
    """Sequences come, start from checkpoints, save others, take over prefixes, and go."""

    @initialize(
        num_blocks=st.integers(4, 30),
        block_tokens=st.sampled_from([1, 2, 4]),
        num_checkpoints=st.integers(0, 5),
    )
    def build(self, num_blocks: int, block_tokens: int, num_checkpoints: int) -> None:
        self.kv = KVManager(num_blocks, block_tokens, num_checkpoints=num_checkpoints)
        self.block_tokens = block_tokens
        self.holders: list[Holder] = []
        self.slots: dict[int, tuple[int, ...]] = {}

    @rule(token_ids=st.lists(TOKENS, min_size=1, max_size=14), room=st.integers(0, 20))
    def admit(self, token_ids: list[int], room: int) -> None:
        table = self.kv.admit(token_ids, len(token_ids) + room)
        if table is None:
            return
        assert table.num_found <= table.num_matched
        num_found = table.num_found * self.block_tokens
        assert num_found < len(token_ids)
        assert (table.restore_key is not None) == (num_found > 0)
        self.holders.append(Holder(table, token_ids, num_found))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        if not holder.is_started:
            num = self.kv.adopt(holder.table, holder.num_scheduled, len(holder.token_ids))
            holder.num_scheduled += num
            assert holder.num_scheduled < len(holder.token_ids)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), num=st.integers(1, 8), save=st.sampled_from(["", "reserve", "follow"]))
    def plan(self, data: st.DataObject, num: int, save: str) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        start, end = holder.num_scheduled, min(holder.num_scheduled + num, len(holder.token_ids))
        if start == end or len(holder.under_way) == 2:
            return
        if not holder.is_started:
            slot = self.kv.states.start(holder.table)
            holder.state = () if slot is None else self.slots[slot]
            holder.is_started = True
        assert holder.state == tuple(holder.token_ids[:start]), "started from another state"
        slot = None
        if save and end % self.block_tokens == 0:
            slot = getattr(self.kv.states, save)(holder.table, end)
        holder.state += tuple(holder.token_ids[start:end])
        holder.num_scheduled = end
        holder.under_way.append(end)
        if slot is not None:
            self.slots[slot] = holder.state

    @precondition(lambda self: any(each.under_way for each in self.holders))
    @rule(data=st.data(), is_known=st.booleans())
    def apply(self, data: st.DataObject, is_known: bool) -> None:
        holder = data.draw(st.sampled_from([each for each in self.holders if each.under_way]))
        end = holder.under_way.pop(0)
        # A cancelled sequence may not know the last token it computed.
        self.kv.commit(holder.table, holder.token_ids, end if is_known else end - 1)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), token_id=TOKENS)
    def generate(self, data: st.DataObject, token_id: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        is_done = holder.num_scheduled == len(holder.token_ids)
        if is_done and self.kv.grow(holder.table, len(holder.token_ids) + 1):
            holder.token_ids.append(token_id)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.kv.release(holder.table)

    @invariant()
    def books_are_right(self) -> None:
        self.kv.check_integrity()
        stats = self.kv.stats()
        saving = sum(len(holder.table.saving) for holder in self.holders)
        assert stats.used_checkpoints + saving <= stats.total_checkpoints

    @invariant()
    def every_start_to_come_finds_its_state(self) -> None:
        for holder in self.holders:
            if holder.is_started or holder.table.restore_key is None:
                continue
            slot = self.kv._checkpoints.find(holder.table.restore_key)
            assert slot is not None
            assert self.slots[slot] == tuple(holder.token_ids[: holder.num_scheduled])

    def teardown(self) -> None:
        for holder in getattr(self, "holders", []):
            self.kv.release(holder.table)
            self.kv.check_integrity()


CheckpointMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None
)
TestCheckpoints = CheckpointMachine.TestCase


def _stepper(
    policy: CheckpointPolicy, num_checkpoints: int, chunk: int, depth: int, num_blocks: int = 600
) -> Stepper:
    kv = KVManager(num_blocks, 4, num_checkpoints=num_checkpoints)
    ticks = itertools.count(1)
    limits = SchedulerLimits(8, 200, chunk, 4, 4, policy)
    scheduler = Scheduler(kv, limits, lambda: next(ticks), lambda: 0)
    return Stepper(scheduler, PlanEngine(4, VOCAB, num_checkpoints), depth)


POLICIES = st.builds(
    CheckpointPolicy,
    interval_tokens=st.sampled_from([4, 8, 24, 1000]),
    min_gain_tokens=st.sampled_from([1, 4, 10]),
    opening_tokens=st.sampled_from([1, 3, 8]),
)


@settings(max_examples=60, deadline=None)
@given(
    num_shared=st.integers(1, 60),
    tails=st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True),
    chunk=st.sampled_from([3, 4, 7, 64]),
    depth=st.integers(0, 1),
    policy=POLICIES,
)
def test_a_burst_computes_the_shared_prefix_once_but_for_what_a_mark_may_miss(
    num_shared: int, tails: list[int], chunk: int, depth: int, policy: CheckpointPolicy
) -> None:
    stepper = _stepper(policy, 64, chunk, depth)
    for tail in tails:
        stepper.submit(f"r{tail}", (*([1] * num_shared), 100 + tail), SamplingParams(1, seed=0))
    stepper.run()
    once = num_shared // 4 * 4
    rest = num_shared + 1 - once
    missed = policy.min_gain_tokens - 1
    assert stepper.engine.prefill_tokens <= once + len(tails) * (rest + missed)


@settings(max_examples=60, deadline=None)
@given(
    num_tokens=st.integers(2, 150),
    chunk=st.sampled_from([1, 4, 7, 64]),
    depth=st.integers(0, 1),
    policy=POLICIES,
    num_checkpoints=st.integers(4, 30),
)
def test_a_prompt_that_comes_again_computes_its_end_only(
    num_tokens: int, chunk: int, depth: int, policy: CheckpointPolicy, num_checkpoints: int
) -> None:
    stepper = _stepper(policy, num_checkpoints, chunk, depth)
    prompt = tuple(range(num_tokens))
    found = []
    for name in "ab":
        answer = stepper.submit(name, prompt, SamplingParams(3, seed=0))
        assert isinstance(answer, Admitted)
        found.append(answer.cached_tokens)
        stepper.run()
    most = policy.opening_tokens + 3 + policy.min_gain_tokens - 1
    assert found[0] == 0
    assert num_tokens - found[1] <= most
    assert stepper.outputs["a"] == stepper.outputs["b"]


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=2, max_size=5),
    num_prompt=st.integers(2, 60),
    chunk=st.sampled_from([3, 4, 64]),
    depth=st.integers(0, 1),
    policy=POLICIES,
    num_checkpoints=st.integers(4, 30),
)
def test_a_next_turn_computes_what_is_new_and_one_block_at_most(
    turns: list[tuple[int, int]],
    num_prompt: int,
    chunk: int,
    depth: int,
    policy: CheckpointPolicy,
    num_checkpoints: int,
) -> None:
    stepper = _stepper(policy, num_checkpoints, chunk, depth)
    history, num_computed = tuple(range(num_prompt)), 0
    for index, (num_new, max_tokens) in enumerate(turns):
        answer = stepper.submit(f"t{index}", history, SamplingParams(max_tokens, seed=index))
        assert isinstance(answer, Admitted)
        assert answer.cached_tokens >= num_computed // 4 * 4
        num_prompt = len(history)
        stepper.run()
        history += tuple(stepper.outputs[f"t{index}"])
        # An answer within the block that the prompt ends in leaves nothing new.
        last = (len(history) - 1) // 4 * 4
        num_computed = last if last > num_prompt else 0
        history += tuple(range(num_new))


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=14
    ),
    num_blocks=st.integers(51, 120),
    num_checkpoints=st.integers(0, 6),
    chunk=st.sampled_from([3, 8, 64]),
    depth=st.integers(0, 1),
    policy=POLICIES,
)
def test_conversations_that_go_on_say_what_they_would_say_alone(
    turns: list[tuple[int, int, int]],
    num_blocks: int,
    num_checkpoints: int,
    chunk: int,
    depth: int,
    policy: CheckpointPolicy,
) -> None:
    stepper = _stepper(policy, num_checkpoints, chunk, depth, num_blocks)
    system = [1] * 21
    talks: dict[int, list[int]] = {}
    asked: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}
    for index, (talk, num_new, max_tokens) in enumerate(turns):
        name, before = f"t{index}", f"t{talk}"
        history = talks.setdefault(talk, list(system))
        history += stepper.outputs.get(before, [])[:3]
        history += [(talk + each) % VOCAB for each in range(num_new)]
        params = SamplingParams(max_tokens, seed=talk)
        if isinstance(stepper.submit(name, tuple(history[:150]), params), Admitted):
            asked[name] = (tuple(history[:150]), params)
        for _ in range(num_new):
            stepper.step()
    stepper.run()
    limit = stepper.scheduler.max_seq_tokens
    for name, (prompt, params) in asked.items():
        assert stepper.outputs[name] == generate_alone(prompt, params, limit, VOCAB)[0]
