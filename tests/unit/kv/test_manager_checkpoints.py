"""KVManager of a model with recurrent layers: a prefix is gone on from at a checkpoint only."""

from __future__ import annotations

import pytest

from luce.kv.block_table import BlockTable
from luce.kv.manager import KVManager

P = 4
FAR = 10_000


def _tokens(num: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + num))


def _admitted(kv: KVManager, token_ids: tuple[int, ...], limit: int = FAR) -> BlockTable:
    table = kv.admit(token_ids, limit)
    assert table is not None
    return table


def _compute(
    kv: KVManager, table: BlockTable, token_ids: tuple[int, ...], *saves: int
) -> list[int | None]:
    """Compute all tokens, with a step's end and a save at each of `saves`; the slots."""
    slots = []
    for position in saves:
        slots.append(kv.states.reserve(table, position))
        kv.commit(table, token_ids, position)
    kv.commit(table, token_ids, len(token_ids))
    return slots


def _left_behind(kv: KVManager, token_ids: tuple[int, ...], *saves: int) -> list[int | None]:
    table = _admitted(kv, token_ids, len(token_ids))
    kv.states.start(table)
    slots = _compute(kv, table, token_ids, *saves)
    kv.release(table)
    return slots


def test_pages_without_a_state_are_no_prefix() -> None:
    kv = KVManager(20, P, num_checkpoints=2)
    _left_behind(kv, _tokens(11))
    table = _admitted(kv, _tokens(11))
    assert (table.num_found, table.num_matched) == (0, 2)
    assert kv.states.start(table) is None
    assert kv.stats().hit_tokens == 0
    kv.check_integrity()


def test_a_prefix_ends_at_the_last_checkpoint_that_leaves_a_token() -> None:
    kv = KVManager(40, P, num_checkpoints=4)
    slots = _left_behind(kv, _tokens(20), 4, 12)
    table = _admitted(kv, _tokens(18))
    assert (table.num_found, table.num_matched) == (3, 4)
    assert table.blocks[:3] == [1, 2, 3]
    assert kv.states.start(table) == slots[1]
    shorter = _admitted(kv, _tokens(12))
    assert shorter.num_found == 1, "at 12 nothing would be left to compute"
    assert kv.states.start(shorter) == slots[0]
    stats = kv.stats()
    assert (stats.hit_tokens, stats.restored_checkpoints) == (16, 2)
    assert (stats.used_checkpoints, stats.total_checkpoints) == (2, 4)
    kv.check_integrity()


def test_a_start_is_told_once() -> None:
    kv = KVManager(20, P, num_checkpoints=2)
    slots = _left_behind(kv, _tokens(11), 8)
    table = _admitted(kv, _tokens(11))
    assert kv.states.start(table) == slots[0]
    assert kv.states.start(table) is None


def test_a_checkpoint_can_be_found_only_once_its_step_is_applied() -> None:
    kv = KVManager(20, P, num_checkpoints=2)
    leader = _admitted(kv, _tokens(11))
    assert kv.states.reserve(leader, 8) == 0
    follower = _admitted(kv, _tokens(11))
    assert kv.adopt(follower, 0, 11) == 0
    kv.check_integrity()
    kv.commit(leader, _tokens(11), 8)
    assert kv.adopt(follower, 0, 11) == 8
    assert follower.blocks[:2] == leader.blocks[:2]
    assert kv.states.start(follower) == 0
    kv.check_integrity()


def test_adopting_again_moves_the_start_on() -> None:
    kv = KVManager(30, P, num_checkpoints=2)
    leader, follower = _admitted(kv, _tokens(17)), _admitted(kv, _tokens(17))
    first, second = kv.states.reserve(leader, 4), kv.states.reserve(leader, 12)
    kv.commit(leader, _tokens(17), 4)
    assert kv.adopt(follower, 0, 17) == 4
    kv.commit(leader, _tokens(17), 12)
    assert kv.adopt(follower, 4, 17) == 8
    kv.check_integrity()
    assert (first, second) == (0, 1)
    assert kv.states.start(follower) == second
    assert kv.states.reserve(leader, 16) == first, "nobody starts from there any more"


def test_a_slot_to_be_restored_is_not_saved_over() -> None:
    kv = KVManager(30, P, num_checkpoints=1)
    slots = _left_behind(kv, _tokens(11), 8)
    waiting = _admitted(kv, _tokens(11))
    other = _admitted(kv, _tokens(11, first=100))
    assert kv.states.reserve(other, 8) is None
    assert kv.states.start(waiting) == slots[0]
    assert kv.states.reserve(other, 8) == slots[0]
    assert kv.stats().used_checkpoints == 0
    kv.check_integrity()


def test_release_before_the_start_lets_the_checkpoint_go() -> None:
    kv = KVManager(30, P, num_checkpoints=1)
    _left_behind(kv, _tokens(11), 8)
    kv.release(_admitted(kv, _tokens(11)))
    kv.check_integrity()
    other = _admitted(kv, _tokens(11, first=100))
    assert kv.states.reserve(other, 8) == 0


def test_release_under_way_gives_the_slot_back() -> None:
    kv = KVManager(30, P, num_checkpoints=1)
    table = _admitted(kv, _tokens(11))
    assert kv.states.reserve(table, 8) == 0
    kv.release(table)
    kv.check_integrity()
    assert kv.stats().used_checkpoints == 0
    assert kv.states.reserve(_admitted(kv, _tokens(11)), 8) == 0


def test_tokens_nobody_knows_leave_no_checkpoint() -> None:
    kv = KVManager(30, P, num_checkpoints=1)
    table = _admitted(kv, _tokens(7))
    assert kv.states.reserve(table, 8) == 0
    kv.commit(table, _tokens(7), 7)
    assert kv.stats().used_checkpoints == 0
    kv.release(table)
    kv.check_integrity()


def test_output_is_checkpointed_like_a_prompt() -> None:
    kv = KVManager(30, P, num_checkpoints=1)
    table = _admitted(kv, _tokens(6))
    assert kv.states.reserve(table, 8) == 0
    kv.commit(table, _tokens(9), 8)
    kv.release(table)
    assert _admitted(kv, _tokens(12)).num_found == 2


def test_what_is_saved_already_is_not_saved_again() -> None:
    kv = KVManager(30, P, num_checkpoints=2)
    _left_behind(kv, _tokens(11), 8)
    again = _admitted(kv, _tokens(8))
    assert again.num_found == 0
    assert kv.states.reserve(again, 8) is None


def test_an_evicted_block_takes_its_checkpoint_along() -> None:
    kv = KVManager(num_blocks=5, block_tokens=P, num_checkpoints=2)
    _left_behind(kv, _tokens(11), 4, 8)
    assert kv.stats().used_checkpoints == 2
    table = _admitted(kv, _tokens(9, first=100), 9)
    assert kv.stats().used_checkpoints == 1
    kv.check_integrity()
    kv.release(table)
    assert _admitted(kv, _tokens(11), 11).num_found == 1


def test_an_evicted_checkpoint_makes_the_prefix_shorter() -> None:
    kv = KVManager(30, P, num_checkpoints=2)
    _left_behind(kv, _tokens(17), 4, 8)
    kv.states.start(_admitted(kv, _tokens(5)))
    other = _admitted(kv, _tokens(5, first=100))
    kv.states.reserve(other, 4)
    table = _admitted(kv, _tokens(17))
    assert (table.num_found, table.num_matched) == (1, 4)


@pytest.mark.parametrize(("prefix_cache", "num_checkpoints"), [(True, 0), (False, 3)])
def test_without_slots_or_sharing_nothing_is_found(
    prefix_cache: bool, num_checkpoints: int
) -> None:
    kv = KVManager(20, P, prefix_cache=prefix_cache, num_checkpoints=num_checkpoints)
    assert not kv.states.is_used
    assert _left_behind(kv, _tokens(11), 8) == [None]
    table = _admitted(kv, _tokens(11))
    assert (table.num_found, table.num_matched) == (0, 0)
    kv.check_integrity()


def test_a_model_without_states_has_no_checkpoints() -> None:
    kv = KVManager(20, P)
    assert _left_behind(kv, _tokens(11), 8) == [None]
    table = _admitted(kv, _tokens(11))
    assert table.num_found == 2
    assert kv.states.start(table) is None
    stats = kv.stats()
    assert (stats.used_checkpoints, stats.total_checkpoints, stats.restored_checkpoints) == (0,) * 3


def test_a_refused_admission_pins_nothing() -> None:
    kv = KVManager(num_blocks=6, block_tokens=P, num_checkpoints=1)
    _left_behind(kv, _tokens(11), 8)
    assert kv.admit(_tokens(40), FAR) is None
    kv.check_integrity()
    assert kv.states.reserve(_admitted(kv, _tokens(9, first=100)), 8) == 0


def test_check_integrity_finds_a_checkpoint_without_its_block() -> None:
    kv = KVManager(20, P, num_checkpoints=1)
    _left_behind(kv, _tokens(5), 4)
    key = next(iter(kv._checkpoints.kept_keys()))
    kv._checkpoints.forget(key)
    slot = kv._checkpoints.take()
    assert slot is not None
    kv._checkpoints.keep(slot, b"lost")
    with pytest.raises(AssertionError, match="outlived"):
        kv.check_integrity()


def test_a_checkpoint_is_behind_a_full_block() -> None:
    kv = KVManager(20, P, num_checkpoints=1)
    with pytest.raises(AssertionError, match="full block"):
        kv.states.reserve(_admitted(kv, _tokens(11)), 6)


def _follow(kv: KVManager, table: BlockTable, token_ids: tuple[int, ...], position: int) -> None:
    assert kv.states.follow(table, position) is not None
    kv.commit(table, token_ids, position)


def test_those_that_follow_replace_each_other() -> None:
    kv = KVManager(40, P, num_checkpoints=4)
    tokens = _tokens(20)
    table = _admitted(kv, tokens)
    kv.states.reserve(table, 4)
    kv.commit(table, tokens, 4)
    for position in (8, 12, 16):
        _follow(kv, table, tokens, position)
        assert kv.stats().used_checkpoints == 2
    kv.release(table)
    assert kv.stats().used_checkpoints == 2
    assert _admitted(kv, tokens).num_found == 4
    assert _admitted(kv, tokens[:15]).num_found == 1
    kv.check_integrity()


def test_two_under_way_replace_each_other_in_their_order() -> None:
    kv = KVManager(40, P, num_checkpoints=4)
    tokens = _tokens(20)
    table = _admitted(kv, tokens)
    assert kv.states.follow(table, 4) == 0
    assert kv.states.follow(table, 8) == 1
    kv.commit(table, tokens, 4)
    assert kv.stats().used_checkpoints == 1
    kv.commit(table, tokens, 8)
    assert kv.stats().used_checkpoints == 1
    kv.release(table)
    assert _admitted(kv, tokens).num_found == 2
    kv.check_integrity()


def test_one_that_another_starts_from_stays() -> None:
    kv = KVManager(40, P, num_checkpoints=4)
    tokens = _tokens(20)
    table = _admitted(kv, tokens)
    _follow(kv, table, tokens, 4)
    other = _admitted(kv, tokens)
    assert other.num_found == 1
    _follow(kv, table, tokens, 8)
    assert kv.states.start(other) == 0
    assert kv.stats().used_checkpoints == 2
    kv.check_integrity()


def test_what_another_has_saved_there_too_is_not_forgotten() -> None:
    kv = KVManager(40, P, num_checkpoints=6)
    tokens = _tokens(20)
    first, second = _admitted(kv, tokens), _admitted(kv, tokens)
    assert kv.states.follow(second, 4) is not None
    kv.states.reserve(first, 4)
    kv.commit(first, tokens, 4)
    kv.commit(second, tokens, 4)
    _follow(kv, second, tokens, 8)
    assert kv.stats().used_checkpoints == 2
    kv.check_integrity()


def test_half_of_the_slots_may_follow() -> None:
    kv = KVManager(60, P, num_checkpoints=5)
    tables = [_admitted(kv, _tokens(9, first)) for first in (0, 100, 200)]
    assert [kv.states.follow(table, 4) for table in tables] == [0, 1, None]
    kv.release(tables[0])
    assert kv.states.follow(tables[2], 4) == 0
    kv.check_integrity()
