"""CheckpointPlanner: where prompts are marked, and which states get a slot."""

from __future__ import annotations

from collections.abc import Sequence as Items

import pytest

from luce.kv.manager import KVManager
from luce.protocol.sampling import SamplingParams
from luce.scheduler.checkpoints import CheckpointPlanner, ComingCheckpoints
from luce.scheduler.limits import CheckpointPolicy
from luce.scheduler.roster import Roster
from luce.scheduler.sequence import Sequence, SequenceStatus

P = 4
SHARED = list(range(1000, 1000 + 40))


class _Floor:
    def __init__(
        self,
        interval_tokens: int = 1000,
        min_gain_tokens: int = 4,
        opening_tokens: int = 1,
        num_checkpoints: int | None = 16,
    ) -> None:
        self.kv = KVManager(600, P, num_checkpoints=num_checkpoints)
        self.roster = Roster(self.kv, 16)
        policy = CheckpointPolicy(interval_tokens, min_gain_tokens, opening_tokens)
        self.planner = CheckpointPlanner(self.kv, policy)

    def seat(self, prompt: Items[int], max_tokens: int = 9) -> Sequence:
        order = len(self.roster.all())
        name = f"s{order}"
        seq = Sequence(name, order, list(prompt), len(prompt), SamplingParams(max_tokens), 0, 0)
        assert self.roster.seat(seq)
        return seq

    def marks(self, *prompts: Items[int]) -> list[list[int] | None]:
        seqs = [self.seat(prompt) for prompt in prompts]
        self.planner.mark(seqs)
        return [seq.marks for seq in seqs]


@pytest.mark.parametrize(
    ("num_tokens", "opening", "marks"),
    [
        (3, 1, []),
        (4, 1, []),
        (5, 1, [4]),
        (20, 1, [16]),
        (21, 1, [20]),
        (21, 2, [16]),
        (21, 5, [16]),
        (21, 8, [12]),
        (21, 30, []),
    ],
)
def test_a_prompt_is_marked_at_its_end_but_for_the_opening_of_the_answer(
    num_tokens: int, opening: int, marks: list[int]
) -> None:
    assert _Floor(opening_tokens=opening).marks(range(num_tokens)) == [marks]


def test_long_prompts_are_marked_at_regular_distances() -> None:
    assert _Floor(interval_tokens=16).marks(range(60)) == [[16, 32, 48, 56]]


def test_distances_are_whole_blocks() -> None:
    assert _Floor(interval_tokens=10).marks(range(40)) == [[12, 24, 36]]


@pytest.mark.parametrize(
    ("slots", "marks"),
    [(16, [32, 64, 96]), (8, [64, 96]), (4, [64, 96]), (1, [64, 96])],
)
def test_a_long_prompt_takes_no_more_than_a_quarter_of_the_slots(
    slots: int, marks: list[int]
) -> None:
    floor = _Floor(interval_tokens=8, num_checkpoints=slots)
    assert floor.marks(range(100)) == [marks]


def test_marks_of_long_and_short_prompts_meet() -> None:
    floor = _Floor(interval_tokens=8, num_checkpoints=16)
    assert floor.marks(range(150), range(500, 572), range(900, 920)) == [
        [32, 64, 96, 128, 148],
        [16, 32, 48, 64, 68],
        [8, 16],
    ]


def test_marks_that_gain_too_little_are_left_out() -> None:
    assert _Floor(interval_tokens=16, min_gain_tokens=9).marks(range(60)) == [[16, 32, 48]]
    assert _Floor(min_gain_tokens=20).marks(range(20)) == [[]]


def test_prompts_are_marked_where_they_part() -> None:
    floor = _Floor()
    first, second, other = floor.marks(
        [*SHARED[:18], *range(30)], [*SHARED[:18], *range(100, 130)], range(30)
    )
    assert first == second == [16, 44]
    assert other == [28]


def test_a_newcomer_marks_those_who_are_on_their_way() -> None:
    floor = _Floor()
    first = floor.seat([*SHARED, 1, 2])
    floor.planner.mark([first])
    assert first.marks == [40]
    newcomer = floor.seat([*SHARED[:24], 7, 7, 7, 7, 7])
    floor.planner.mark([first, newcomer])
    assert first.marks == [24, 40]
    assert newcomer.marks == [24, 28]


def test_what_is_behind_a_sequence_is_marked_for_the_newcomer_only() -> None:
    floor = _Floor()
    first = floor.seat([*SHARED, 1, 2])
    floor.planner.mark([first])
    first.num_scheduled = 32
    newcomer = floor.seat([*SHARED[:24], 7, 7, 7, 7, 7])
    floor.planner.mark([first, newcomer])
    assert first.marks == [40]
    assert newcomer.marks == [24, 28]


def test_a_prefix_without_a_state_is_marked_at_its_end() -> None:
    floor = _Floor()
    gone = floor.seat(SHARED)
    floor.kv.commit(gone.table, SHARED, len(SHARED))
    floor.roster.remove(gone)
    assert floor.marks([*SHARED[:26], 1, 2, 3, 4, 5, 6, 7, 8, 9]) == [[24, 32]]


def test_marks_are_chosen_once_a_seat() -> None:
    floor = _Floor()
    seq = floor.seat(SHARED)
    floor.planner.mark([seq])
    marks = seq.marks
    floor.planner.mark([seq])
    assert seq.marks is marks
    floor.roster.unseat(seq)
    assert floor.roster.seat(seq)
    assert seq.marks is None


def test_tokens_to_mark() -> None:
    floor = _Floor()
    seq = floor.seat(range(42))
    floor.planner.mark([seq])
    assert floor.planner.tokens_to_mark(seq) == 40
    seq.num_scheduled = 39
    assert floor.planner.tokens_to_mark(seq) == 1
    seq.num_scheduled = 40
    assert floor.planner.tokens_to_mark(seq) == 2


def test_a_chunk_that_ends_at_a_mark_gets_a_slot() -> None:
    floor = _Floor()
    seq = floor.seat(range(42))
    floor.planner.mark([seq])
    assert floor.planner.reserve(seq, 36) is None
    assert floor.planner.reserve(seq, 42) is None
    assert floor.planner.reserve(seq, 40) == 0
    assert seq.table.saving == {40: 0}


def _decoder(floor: _Floor, num_scheduled: int) -> Sequence:
    seq = floor.seat([9] * 5, max_tokens=500)
    seq.num_scheduled = num_scheduled
    seq.move_to(SequenceStatus.DECODE)
    return seq


def test_output_is_checkpointed_at_regular_distances() -> None:
    floor = _Floor(interval_tokens=16)
    follows = []
    for position in (30, 31, 79, 95):
        seq = _decoder(floor, position)
        assert (floor.planner.reserve(seq, 1) is None) == (position == 30)
        follows.append(seq.table.follows)
    assert follows == [None, None, {80}, None], "80 = 5 x 16; four in 16 slots"


def test_output_is_checkpointed_at_each_block_by_half_of_the_slots() -> None:
    floor = _Floor(num_checkpoints=4)
    assert floor.planner.reserve(_decoder(floor, 30), 1) is None
    assert floor.planner.reserve(_decoder(floor, 31), 1) == 0
    assert floor.planner.reserve(_decoder(floor, 35), 1) == 1
    assert floor.planner.reserve(_decoder(floor, 39), 1) is None
    floor.kv.release(floor.roster.all()[1].table)
    assert floor.planner.reserve(_decoder(floor, 39), 1) == 0


def test_without_states_nothing_is_marked_or_saved() -> None:
    floor = _Floor(interval_tokens=4, num_checkpoints=None)
    seq = floor.seat(range(42))
    assert floor.planner.reserve(seq, 40) is None
    assert floor.planner.reserve(_decoder(floor, 31), 1) is None


class TestComingCheckpoints:
    """What a sequence that has not started may wait for."""

    def _pair(self) -> tuple[_Floor, Sequence, Sequence, ComingCheckpoints]:
        floor = _Floor()
        leader, follower = floor.seat([*SHARED, 1, 2]), floor.seat([*SHARED[:24], 7, 7, 7, 7])
        floor.planner.mark([leader, follower])
        return floor, leader, follower, ComingCheckpoints(P)

    def test_a_mark_on_the_shared_way(self) -> None:
        _, leader, follower, coming = self._pair()
        assert not coming.can_help(follower)
        coming.add_marks(leader)
        assert coming.can_help(follower)
        assert coming.can_help(leader), "but it is the one who computes, so it is not asked"

    def test_not_one_that_was_passed(self) -> None:
        _, leader, follower, coming = self._pair()
        leader.num_scheduled = 24
        coming.add_marks(leader)
        assert not coming.can_help(follower), "40 is past where they part"

    def test_not_one_behind_the_follower(self) -> None:
        _, leader, follower, coming = self._pair()
        follower.num_scheduled = 24
        coming.add_marks(leader)
        assert not coming.can_help(follower)

    def test_a_save_under_way(self) -> None:
        floor, leader, follower, coming = self._pair()
        assert floor.planner.reserve(leader, 24) == 0
        leader.num_scheduled = 24
        coming.add_saves(leader)
        assert coming.can_help(follower)

    def test_nothing_of_a_broken_sequence(self) -> None:
        floor, leader, follower, coming = self._pair()
        assert floor.planner.reserve(leader, 24) == 0
        leader.is_broken = True
        coming.add_saves(leader)
        assert not coming.can_help(follower)

    def test_not_one_at_the_very_end(self) -> None:
        floor = _Floor(opening_tokens=1)
        leader, follower = floor.seat([*SHARED[:24], 1]), floor.seat(SHARED[:24])
        floor.planner.mark([leader, follower])
        assert leader.marks == [20, 24]
        leader.marks = [24]
        coming = ComingCheckpoints(P)
        coming.add_marks(leader)
        assert not coming.can_help(follower), "its last token would have nothing to compute"
