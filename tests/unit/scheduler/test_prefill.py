"""PrefillPlanner: turns among prompts, and shared prefixes computed once."""

from __future__ import annotations

from collections.abc import Sequence as Items

from hypothesis import given, settings
from hypothesis import strategies as st

from luce.kv.manager import KVManager
from luce.protocol.sampling import SamplingParams
from luce.scheduler.checkpoints import CheckpointPlanner
from luce.scheduler.limits import CheckpointPolicy, SchedulerLimits
from luce.scheduler.prefill import PrefillPlanner
from luce.scheduler.roster import Roster
from luce.scheduler.sequence import Sequence

P = 4
SHARED = list(range(1000, 1000 + 3 * P))


class _Floor:
    """A roster and a planner; `compute` plays the engine and `apply`."""

    def __init__(
        self,
        chunk: int = 16,
        max_prefill_sequences: int = 4,
        quantum: int = 4,
        num_checkpoints: int | None = None,
    ) -> None:
        self.kv = KVManager(200, P, num_checkpoints=num_checkpoints)
        self.roster = Roster(self.kv, 16)
        policy = CheckpointPolicy(interval_tokens=1000, min_gain_tokens=4, opening_tokens=1)
        limits = SchedulerLimits(16, 500, chunk, max_prefill_sequences, quantum, policy)
        checkpoints = CheckpointPlanner(self.kv, limits.checkpoints)
        self.planner = PrefillPlanner(self.kv, limits, checkpoints)

    def seat(self, name: str, prompt: Items[int]) -> Sequence:
        order = len(self.roster.all())
        seq = Sequence(name, order, list(prompt), len(prompt), SamplingParams(9), 0, 0)
        assert self.roster.seat(seq)
        return seq

    def plan(self) -> dict[str, int]:
        return {seq.request_id: num for seq, num in self._schedule()}

    def compute(self) -> dict[str, int]:
        work = self._schedule()
        for seq, num in work:
            self.commit(seq, num)
        return {seq.request_id: num for seq, num in work}

    def commit(self, seq: Sequence, num: int) -> None:
        seq.num_in_flight -= 1
        seq.num_computed += num
        self.kv.commit(seq.table, seq.token_ids, seq.num_scheduled)

    def _schedule(self) -> list[tuple[Sequence, int]]:
        work = self.planner.plan(self.roster.seated())
        for seq, num in work:
            seq.schedule(num, P)
        return work


def test_nothing_to_do() -> None:
    assert _Floor().plan() == {}


def test_a_long_prompt_leaves_turns_to_a_short_one() -> None:
    floor = _Floor(chunk=8)
    floor.seat("long", range(400))
    floor.seat("short", range(1000, 1006))
    assert floor.compute() == {"long": 4, "short": 4}
    assert floor.compute() == {"long": 6, "short": 2}
    assert floor.compute() == {"long": 8}


def test_cohorts_take_turns() -> None:
    floor = _Floor(chunk=16, max_prefill_sequences=2)
    for order in range(5):
        floor.seat(f"p{order}", range(order * 100, order * 100 + 40))
    cohorts = [floor.compute() for _ in range(5)]
    assert cohorts == [
        {"p0": 8, "p1": 8},
        {"p2": 8, "p3": 8},
        {"p0": 8, "p4": 8},
        {"p1": 8, "p2": 8},
        {"p3": 8, "p4": 8},
    ]


def test_short_prompts_leave_no_part_of_a_chunk_empty() -> None:
    floor = _Floor(chunk=16, max_prefill_sequences=2)
    for order in range(6):
        floor.seat(f"p{order}", range(order * 100, order * 100 + 3))
    assert floor.compute() == {"p0": 3, "p1": 3, "p2": 3, "p3": 3, "p4": 3, "p5": 1}
    assert floor.compute() == {"p5": 2}


def test_who_fills_a_chunk_takes_nothing_from_those_whose_turn_it_is() -> None:
    floor = _Floor(chunk=20, max_prefill_sequences=2)
    floor.seat("a", range(9))
    floor.seat("b", range(100, 109))
    floor.seat("c", range(200, 240))
    floor.seat("d", range(300, 303))
    assert floor.compute() == {"a": 9, "b": 9, "c": 2}
    # It was served last, so the turn is the next one's.
    assert floor.compute() == {"c": 17, "d": 3}


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=16),
    chunk=st.integers(1, 40),
    cohort=st.integers(1, 4),
    quantum=st.sampled_from([1, 4, 16]),
)
def test_no_part_of_a_chunk_stays_empty_and_nobody_waits_longer_than_a_round(
    lengths: list[int], chunk: int, cohort: int, quantum: int
) -> None:
    floor = _Floor(chunk, cohort, quantum)
    left = {f"p{order}": length for order, length in enumerate(lengths)}
    for order, length in enumerate(lengths):
        floor.seat(f"p{order}", range(100 * order, 100 * order + length))
    waited = dict.fromkeys(left, 0)
    while left:
        dealt = floor.compute()
        assert sum(dealt.values()) == min(chunk, sum(left.values()))
        for name in list(left):
            left[name] -= dealt.get(name, 0)
            waited[name] = 0 if name in dealt else waited[name] + 1
            assert waited[name] < len(lengths)
        # More than a cohort only where the first ones of it want no more: one is cut short.
        unfinished = [name for name in dealt if left[name]]
        assert len(dealt) <= cohort or len(unfinished) <= 1
        left = {name: num for name, num in left.items() if num}


def test_a_short_prompt_behind_many_long_ones_has_its_turn() -> None:
    floor = _Floor(chunk=16, max_prefill_sequences=4)
    for order in range(4):
        floor.seat(f"long{order}", range(order * 1000, order * 1000 + 150))
    for _ in range(3):
        floor.compute()
    floor.seat("short", range(5000, 5003))
    assert floor.compute()["short"] == 3


def test_the_same_prefix_is_computed_by_the_first_only() -> None:
    floor = _Floor()
    floor.seat("a", [*SHARED, 1, 2])
    floor.seat("b", [*SHARED, 3, 4])
    floor.seat("c", [*SHARED, 5])
    assert floor.compute() == {"a": 14}
    assert floor.compute() == {"b": 2, "c": 1}
    assert floor.kv.stats().hit_tokens == 2 * len(SHARED)


def test_followers_take_over_block_by_block() -> None:
    floor = _Floor(chunk=4)
    leader = floor.seat("a", [*SHARED, 1])
    follower = floor.seat("b", [*SHARED, 2])
    assert floor.compute() == {"a": 4}
    assert floor.compute() == {"a": 4}
    assert follower.num_scheduled == 4
    assert follower.table.blocks[0] == leader.table.blocks[0]


def test_a_step_under_way_is_waited_for() -> None:
    floor = _Floor(chunk=32)
    leader = floor.seat("a", [*SHARED, 1])
    floor.seat("b", [*SHARED, 2])
    assert floor.plan() == {"a": 13}
    assert floor.plan() == {}, "the leader is a decoder by now, its blocks are not there yet"
    floor.commit(leader, 13)
    assert floor.plan() == {"b": 1}


def test_waiting_prompts_take_no_place_in_the_cohort() -> None:
    floor = _Floor(chunk=16, max_prefill_sequences=2)
    for name in "abcd":
        floor.seat(name, [*SHARED, ord(name)])
    floor.seat("other", range(30))
    assert floor.plan() == {"a": 8, "other": 8}


def test_the_next_takes_over_when_the_leader_goes() -> None:
    floor = _Floor(chunk=4)
    leader = floor.seat("a", [*SHARED, 1])
    floor.seat("b", [*SHARED, 2])
    floor.seat("c", [*SHARED, 3])
    assert floor.compute() == {"a": 4}
    floor.roster.remove(leader)
    assert floor.compute() == {"b": 4}
    assert floor.compute() == {"b": 4}
    floor.roster.check_integrity()


def test_chunks_that_end_inside_a_block_still_share_the_next_ones() -> None:
    floor = _Floor(chunk=3, quantum=3)
    floor.seat("a", [*SHARED, 1])
    floor.seat("b", [*SHARED, 2])
    computed = 0
    for _ in range(20):
        computed += sum(floor.compute().values())
    assert computed == len(SHARED) + 2


def test_the_start_rotates_from_step_to_step() -> None:
    floor = _Floor(chunk=4)
    floor.seat("a", range(20))
    floor.seat("b", range(100, 120))
    assert [floor.compute() for _ in range(3)] == [{"a": 4}, {"b": 4}, {"a": 4}]


def test_one_that_is_behind_stops_where_another_is_ahead_even_a_younger_one() -> None:
    floor = _Floor(chunk=12, quantum=6)
    behind = floor.seat("behind", [*SHARED, 1])
    ahead = floor.seat("ahead", [*SHARED, 2])
    behind.num_scheduled = behind.num_computed = 5
    ahead.num_scheduled = ahead.num_computed = 10
    # Both are inside a block; block 2 is being computed by the one ahead.
    assert floor.plan() == {"behind": 3, "ahead": 3}


def test_one_that_is_inside_a_block_stops_at_the_next_cached_one() -> None:
    floor = _Floor()
    inside = floor.seat("a", [*SHARED, 1])
    inside.num_scheduled = inside.num_computed = 2
    other = floor.seat("b", [*SHARED, 2])
    other.num_scheduled = other.num_computed = 12
    floor.kv.commit(other.table, other.token_ids, 12)
    assert floor.compute() == {"a": 2, "b": 1}
    assert floor.compute() == {"a": 1}


def test_identical_prompts_of_whole_blocks_each_compute_the_last_one() -> None:
    floor = _Floor()
    floor.seat("a", SHARED)
    floor.seat("b", SHARED)
    assert floor.compute() == {"a": 12}
    assert floor.compute() == {"b": 4}


def _started(floor: _Floor, name: str, prompt: Items[int]) -> Sequence:
    """A sequence whose row has computed its first block."""
    seq = floor.seat(name, prompt)
    seq.start_row()
    seq.num_scheduled = seq.num_computed = P
    floor.kv.commit(seq.table, seq.token_ids, P)
    return seq


def _saved(floor: _Floor, prompt: Items[int], position: int) -> None:
    """Another sequence computes the prompt and leaves a checkpoint at `position`."""
    other = floor.seat("other", prompt)
    assert floor.kv.states.reserve(other.table, position) is not None
    floor.kv.commit(other.table, other.token_ids, len(prompt))
    floor.roster.remove(other)


def test_with_states_a_row_on_its_way_takes_nothing_over() -> None:
    floor = _Floor(num_checkpoints=4)
    started = _started(floor, "started", [*SHARED, 1])
    _saved(floor, [*SHARED, 2], 8)
    fresh = floor.seat("fresh", [*SHARED, 3])
    assert fresh.num_scheduled == 8
    assert floor.plan() == {"started": 8, "fresh": 4}
    assert started.num_scheduled == 12, "from 4 on: its state is nobody else's"


def test_without_states_it_does() -> None:
    floor = _Floor()
    started = _started(floor, "started", [*SHARED, 1])
    other = floor.seat("other", [*SHARED, 2])
    floor.kv.commit(other.table, other.token_ids, 13)
    floor.roster.remove(other)
    assert floor.plan() == {"started": 1}
    assert started.num_scheduled == 13


def test_with_states_only_those_who_have_not_started_wait() -> None:
    floor = _Floor(num_checkpoints=4)
    ahead = floor.seat("ahead", [*SHARED, 1])
    ahead.start_row()
    ahead.num_scheduled = ahead.num_computed = 2 * P
    _started(floor, "started", [*SHARED, 2])
    floor.seat("fresh", [*SHARED, 3])
    assert floor.plan() == {"ahead": 4, "started": 8}, "both stop at 12, where all three part"


def test_with_states_a_prompt_waits_for_a_checkpoint_not_for_blocks() -> None:
    floor = _Floor(chunk=4, num_checkpoints=4)
    leader = floor.seat("a", [*SHARED, 1])
    follower = floor.seat("b", [*SHARED, 2])
    assert [floor.compute() for _ in range(2)] == [{"a": 4}, {"a": 4}]
    assert follower.num_scheduled == 0, "nothing was saved yet"
    assert leader.marks == follower.marks == [12]


def test_with_states_nobody_waits_where_nothing_will_be_saved() -> None:
    floor = _Floor(num_checkpoints=4)
    leader = floor.seat("a", [*SHARED, 1])
    leader.marks = []
    follower = floor.seat("b", [*SHARED, 2])
    follower.marks = []
    assert floor.plan() == {"a": 8, "b": 8}
