"""Sequence: legal moves, what goes into a step, when it ends."""

from __future__ import annotations

import pytest

from luce.kv.block_table import BlockTable
from luce.protocol.sampling import SamplingParams
from luce.scheduler.sequence import Ending, Seat, Sequence, SequenceStatus

S = SequenceStatus
P = 4


def _sequence(num_prompt: int = 6, **sampling: object) -> Sequence:
    params = SamplingParams(**{"max_tokens": 3, **sampling})  # type: ignore[arg-type]
    prompt = list(range(10, 10 + num_prompt))
    return Sequence("r", 0, prompt, num_prompt, params, seed=5, admitted_ns=1)


def _seated(num_prompt: int = 6, found_tokens: int = 0, **sampling: object) -> Sequence:
    seq = _sequence(num_prompt, **sampling)
    seq.sit(Seat(2, BlockTable([7, 8, 9])), found_tokens)
    return seq


@pytest.mark.parametrize(
    "path",
    [
        [S.DECODE, S.FINISHED, S.RETIRED],
        [S.FINISHED, S.RETIRED],
        [S.YIELDING, S.PREEMPTED, S.PREFILL, S.DECODE],
        [S.DECODE, S.YIELDING, S.FINISHED],
        [S.YIELDING, S.PREEMPTED, S.FINISHED, S.RETIRED],
    ],
)
def test_legal_lives(path: list[SequenceStatus]) -> None:
    seq = _sequence()
    for status in path:
        seq.move_to(status)
    assert seq.status is path[-1]


@pytest.mark.parametrize(
    ("path", "illegal"),
    [
        ([], S.RETIRED),
        ([], S.PREEMPTED),
        ([S.DECODE], S.PREFILL),
        ([S.FINISHED], S.DECODE),
        ([S.FINISHED, S.RETIRED], S.FINISHED),
        ([S.YIELDING, S.PREEMPTED], S.DECODE),
    ],
)
def test_illegal_moves_are_our_bugs(path: list[SequenceStatus], illegal: SequenceStatus) -> None:
    seq = _sequence()
    for status in path:
        seq.move_to(status)
    with pytest.raises(AssertionError, match="no legal move"):
        seq.move_to(illegal)


def test_the_last_chunk_samples_and_makes_a_decoder() -> None:
    seq = _seated()
    first = seq.schedule(4, P)
    assert (first.row, first.start, first.token_ids) == (2, 0, (10, 11, 12, 13))
    assert (first.block_table, first.sample, seq.status) == ((7,), False, S.PREFILL)
    second = seq.schedule(2, P)
    assert (second.start, second.token_ids, second.block_table) == (4, (14, 15), (7, 8))
    assert (second.sample, second.output_index, seq.status) == (True, 0, S.DECODE)
    assert (seq.num_in_flight, seq.num_unresolved) == (2, 1)


def test_a_decoder_runs_ahead_of_the_tokens_it_knows() -> None:
    seq = _seated()
    seq.schedule(6, P)
    ahead = seq.schedule_token(P)
    assert (ahead.start, ahead.token_ids, ahead.num_tokens) == (6, (), 1)
    assert (ahead.sample, ahead.output_index, ahead.block_table) == (True, 1, (7, 8))
    assert seq.wants_token
    seq.schedule_token(P)
    assert not seq.wants_token, "three tokens are under way and three were asked for"


def test_a_decoder_is_sent_its_table_anew_once_it_has_grown() -> None:
    seq = _seated(max_tokens=9)
    seq.schedule(6, P)
    tables = [seq.schedule_token(P).block_table]
    seq.table.blocks.append(9)
    tables += [seq.schedule_token(P).block_table for _ in range(4)]
    assert tables == [(7, 8), (7, 8), (7, 8, 9), (7, 8, 9), (7, 8, 9)]
    seq.num_in_flight = 0
    seq.stand_up()
    assert seq.blocks == []
    seq.move_to(S.YIELDING)
    seq.move_to(S.PREEMPTED)
    seq.move_to(S.PREFILL)
    seq.sit(Seat(0, BlockTable([4, 5, 6, 3])), 0)
    seq.schedule(6, P)
    assert seq.schedule_token(P).block_table == (4, 5)


def test_a_row_is_introduced_once_per_seat() -> None:
    seq = _seated()
    start = seq.start_row()
    assert start is not None
    assert (start.row, start.seed, start.num_prompt_tokens) == (2, 5, 6)
    assert start.history == tuple(range(10, 16))
    assert seq.start_row() is None
    assert seq.stand_up().row == 2
    seq.accept(99, now_ns=1)
    seq.sit(Seat(0, BlockTable([1])), 0)
    again = seq.start_row()
    assert again is not None
    assert again.history == (*range(10, 16), 99)
    assert again.num_prompt_tokens == 6


def test_stop_token_ends_with_stop_even_when_it_is_the_last_allowed() -> None:
    seq = _seated(max_tokens=1, stop_token_ids=(42,))
    seq.accept(42, now_ns=9)
    assert seq.ending is not None
    assert seq.ending.finish == "stop"


def test_length_ends_after_max_tokens() -> None:
    seq = _seated(max_tokens=2, stop_token_ids=(42,))
    endings = []
    for now_ns in (5, 9):
        seq.accept(1, now_ns)
        endings.append(seq.ending)
    assert endings == [None, Ending("length")]
    assert (seq.first_token_ns, seq.last_token_ns) == (5, 9)


def test_the_last_sampled_token_needs_no_place() -> None:
    assert _sequence(6, max_tokens=1).limit_tokens == 6
    assert _sequence(6, max_tokens=4).limit_tokens == 9


def test_cached_tokens_count_until_the_first_preemption() -> None:
    seq = _seated(num_prompt=12, found_tokens=4)
    seq.skip(4)
    assert (seq.cached_tokens, seq.num_scheduled) == (8, 8)
    seq.was_preempted = True
    seq.stand_up()
    seq.sit(Seat(0, BlockTable([1, 2, 3])), 8)
    assert (seq.cached_tokens, seq.num_scheduled) == (8, 8)


def test_nobody_stands_up_while_a_step_uses_the_blocks() -> None:
    seq = _seated()
    seq.schedule(2, P)
    with pytest.raises(AssertionError, match="under way"):
        seq.stand_up()


def test_seats_are_not_confused() -> None:
    seq = _sequence()
    with pytest.raises(AssertionError, match="no blocks"):
        _ = seq.table
    seq.sit(Seat(0, BlockTable([1, 2])), 0)
    with pytest.raises(AssertionError, match="has a seat"):
        seq.sit(Seat(1, BlockTable([3, 4])), 0)
