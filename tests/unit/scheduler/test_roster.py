"""Roster: rows, seats, order, and the check over all of them."""

from __future__ import annotations

import pytest

from luce.kv.manager import KVManager
from luce.protocol.sampling import SamplingParams
from luce.scheduler.roster import Roster
from luce.scheduler.sequence import Ending, Sequence, SequenceStatus

P = 4


def _sequence(name: str, order: int, num_prompt: int = 4, max_tokens: int = 20) -> Sequence:
    prompt = [order * 100 + index for index in range(num_prompt)]
    return Sequence(name, order, prompt, num_prompt, SamplingParams(max_tokens), 0, 0)


def _roster(num_blocks: int = 20, max_rows: int = 3) -> tuple[KVManager, Roster]:
    kv = KVManager(num_blocks, P)
    return kv, Roster(kv, max_rows)


def _row(seq: Sequence) -> int:
    assert seq.seat is not None
    return seq.seat.row


def test_gives_the_lowest_free_row() -> None:
    _, roster = _roster()
    seqs = [_sequence(name, order) for order, name in enumerate("abc")]
    assert all(roster.seat(seq) for seq in seqs)
    assert [_row(seq) for seq in seqs] == [0, 1, 2]
    assert not roster.has_free_row
    roster.remove(seqs[1])
    late = _sequence("d", 3)
    assert roster.seat(late)
    assert _row(late) == 1
    assert [seq.request_id for seq in roster.all()] == ["a", "c", "d"]
    roster.check_integrity()


def test_seating_needs_a_row_and_blocks_or_changes_nothing() -> None:
    kv, roster = _roster(num_blocks=4, max_rows=1)
    assert not roster.seat(_sequence("long", 0, num_prompt=12))
    assert roster.is_empty
    assert roster.has_free_row
    assert roster.seat(_sequence("short", 1))
    assert not roster.seat(_sequence("other", 2))
    assert kv.available_blocks == 1
    roster.check_integrity()


def test_a_preempted_sequence_keeps_its_place_in_the_order() -> None:
    _, roster = _roster()
    first, second = _sequence("a", 0), _sequence("b", 1)
    assert roster.seat(first)
    assert roster.seat(second)
    first.move_to(SequenceStatus.YIELDING)
    assert roster.is_anyone_leaving()
    assert roster.newest_developing() is second
    roster.unseat(first)
    first.move_to(SequenceStatus.PREEMPTED)
    assert roster.preempted() == [first]
    assert roster.seated() == [second]
    assert roster.all() == [first, second]
    roster.check_integrity()
    assert roster.seat(first)
    first.move_to(SequenceStatus.PREFILL)
    assert roster.seated() == [first, second]


def test_top_up_gives_decoders_one_block_ahead_or_nobody_anything() -> None:
    kv, roster = _roster(num_blocks=6)
    seqs = [_sequence("a", 0), _sequence("b", 1)]
    for seq in seqs:
        assert roster.seat(seq)
        seq.schedule(4, P)
    assert roster.top_up()
    assert [len(seq.table.blocks) for seq in seqs] == [2, 2]
    for seq in seqs:
        seq.num_scheduled = 5
    assert not roster.top_up(), "both want a third block and one is left"
    assert [len(seq.table.blocks) for seq in seqs] == [2, 2]
    seqs[1].num_scheduled = 4
    assert roster.top_up()
    assert [len(seq.table.blocks) for seq in seqs] == [3, 2]
    assert kv.available_blocks == 0


def test_top_up_asks_for_nothing_past_the_end_of_a_sequence() -> None:
    kv, roster = _roster(num_blocks=4)
    seq = _sequence("a", 0, num_prompt=4, max_tokens=5)
    assert roster.seat(seq)
    seq.schedule(4, P)
    seq.num_scheduled = 8
    assert roster.top_up()
    assert len(seq.table.blocks) == 2
    assert kv.available_blocks == 1


def test_check_integrity_finds_a_lost_row() -> None:
    _, roster = _roster()
    seq = _sequence("a", 0)
    assert roster.seat(seq)
    roster.check_integrity()
    roster._free_rows.pop()
    with pytest.raises(AssertionError, match="row leaked"):
        roster.check_integrity()


def test_check_integrity_finds_a_status_that_does_not_match() -> None:
    _, roster = _roster()
    seq = _sequence("a", 0)
    assert roster.seat(seq)
    seq.ending = Ending("cancelled")
    with pytest.raises(AssertionError, match="ending and status"):
        roster.check_integrity()
    seq.ending = None
    seq.status = SequenceStatus.PREEMPTED
    with pytest.raises(AssertionError, match="seat and status"):
        roster.check_integrity()


def test_check_integrity_finds_a_shared_block_still_to_be_written() -> None:
    kv, roster = _roster()
    seq = _sequence("a", 0, num_prompt=8)
    assert roster.seat(seq)
    kv.commit(seq.table, seq.token_ids, 8)
    with pytest.raises(AssertionError, match="still to be written"):
        roster.check_integrity()
