"""KVManager: admission, growth, sharing and release, each all or nothing."""

from __future__ import annotations

import pytest

from luce.kv.manager import KVManager

P = 4
FAR = 10_000


def _tokens(num: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + num))


def _computed(kv: KVManager, token_ids: tuple[int, ...]) -> None:
    """Leave `token_ids` in the cache, as a sequence that came and went does."""
    table = kv.admit(token_ids, len(token_ids))
    assert table is not None
    kv.commit(table, token_ids, len(token_ids))
    kv.release(table)


def test_whether_one_of_some_keys_is_cached() -> None:
    kv = KVManager(num_blocks=9, block_tokens=P)
    _computed(kv, _tokens(P))
    table = kv.admit(_tokens(2 * P), FAR)
    assert table is not None
    assert kv.has_any(table.keys)
    assert not kv.has_any(table.keys[1:])
    assert not kv.has_any([])


def test_admits_the_prompt_and_one_block() -> None:
    kv = KVManager(num_blocks=6, block_tokens=P)
    table = kv.admit(_tokens(5), FAR)
    assert table is not None
    assert table.blocks == [1, 2, 3]
    assert kv.available_blocks == 2
    kv.check_integrity()


def test_admission_takes_all_or_nothing() -> None:
    kv = KVManager(num_blocks=4, block_tokens=P)
    assert kv.admit(_tokens(9), FAR) is None
    assert kv.available_blocks == 3
    assert kv.stats().query_tokens == 0
    kv.check_integrity()
    assert kv.admit(_tokens(9), 12) is not None


def test_a_later_prompt_shares_full_blocks_only() -> None:
    kv = KVManager(num_blocks=10, block_tokens=P)
    _computed(kv, _tokens(11))
    table = kv.admit(_tokens(11), FAR)
    assert table is not None
    assert table.num_found == 2
    assert table.blocks[:2] == [1, 2]
    stats = kv.stats()
    assert (stats.query_tokens, stats.hit_tokens) == (22, 8)
    kv.check_integrity()


@pytest.mark.parametrize(("num_tokens", "found"), [(3, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2)])
def test_one_token_is_always_left_to_compute(num_tokens: int, found: int) -> None:
    kv = KVManager(num_blocks=20, block_tokens=P)
    _computed(kv, _tokens(num_tokens))
    table = kv.admit(_tokens(num_tokens), FAR)
    assert table is not None
    assert table.num_found == found
    assert found * P < num_tokens


def test_two_live_sequences_share_a_block_and_it_outlives_the_first() -> None:
    kv = KVManager(num_blocks=10, block_tokens=P)
    first = kv.admit(_tokens(6), 8)
    assert first is not None
    kv.commit(first, _tokens(6), 6)
    second = kv.admit(_tokens(6), 8)
    assert second is not None
    assert second.blocks[0] == first.blocks[0]
    assert second.blocks[1] != first.blocks[1]
    assert not kv.is_writable(first.blocks[0])
    assert kv.is_writable(second.blocks[1])
    kv.release(first)
    kv.check_integrity()
    kv.release(second)
    kv.check_integrity()
    stats = kv.stats()
    assert (stats.free_blocks, stats.cached_blocks, stats.total_blocks) == (8, 1, 9)


def test_without_a_prefix_cache_nothing_is_shared_or_kept() -> None:
    kv = KVManager(num_blocks=10, block_tokens=P, prefix_cache=False)
    _computed(kv, _tokens(8))
    assert kv.stats().cached_blocks == 0
    table = kv.admit(_tokens(8), FAR)
    assert table is not None
    assert (table.num_found, table.keys) == (0, [])
    assert kv.adopt(table, 0, 8) == 0


def test_a_cached_block_goes_when_its_place_is_needed() -> None:
    kv = KVManager(num_blocks=4, block_tokens=P)
    _computed(kv, _tokens(12))
    assert kv.stats().free_blocks == 0
    assert kv.available_blocks == 3
    table = kv.admit(_tokens(8, first=50), 8)
    assert table is not None
    kv.check_integrity()
    again = kv._match(_chain(kv, _tokens(12)), 12)
    assert len(again) == 1, "the tail went first, the head is still there"


def _chain(kv: KVManager, token_ids: tuple[int, ...]) -> list[bytes]:
    keys: list[bytes] = []
    kv._cache.extend(keys, token_ids, len(token_ids) // P)
    return keys


def test_blocks_found_for_a_prompt_are_not_counted_as_room_for_it() -> None:
    kv = KVManager(num_blocks=4, block_tokens=P)
    _computed(kv, _tokens(8))
    # Two cached, one free: two found and one new fit, two new do not.
    assert kv.admit(_tokens(12), FAR) is None
    kv.check_integrity()
    assert kv.admit(_tokens(12), 12) is not None


def test_grow_takes_a_block_only_when_one_is_missing() -> None:
    kv = KVManager(num_blocks=4, block_tokens=P)
    table = kv.admit(_tokens(4), 4)
    assert table is not None
    assert kv.grow(table, 4)
    assert len(table.blocks) == 1
    assert kv.grow(table, 5)
    assert len(table.blocks) == 2
    assert not kv.grow(table, 13)
    assert len(table.blocks) == 2
    kv.check_integrity()


def test_top_up_serves_everyone_or_nobody() -> None:
    kv = KVManager(num_blocks=5, block_tokens=P)
    first, second = kv.admit(_tokens(4), 4), kv.admit(_tokens(4, 50), 4)
    assert first is not None
    assert second is not None
    assert not kv.top_up([(first, 2), (second, 3)])
    assert (len(first.blocks), len(second.blocks)) == (1, 1)
    assert kv.top_up([(first, 2), (second, 2)])
    assert (len(first.blocks), len(second.blocks)) == (2, 2)
    assert kv.top_up([(first, 1), (second, 0)]), "having more than asked for is fine"


def test_adopt_swaps_reserved_blocks_for_computed_ones() -> None:
    kv = KVManager(num_blocks=20, block_tokens=P)
    leader, follower = kv.admit(_tokens(13), 13), kv.admit(_tokens(13), 13)
    assert leader is not None
    assert follower is not None
    assert kv.adopt(follower, 0, 13) == 0
    kv.commit(leader, _tokens(13), 9)
    free_before = kv.stats().free_blocks
    assert kv.adopt(follower, 0, 13) == 8
    assert follower.blocks[:2] == leader.blocks[:2]
    assert follower.blocks[2] != leader.blocks[2]
    assert kv.stats().free_blocks == free_before + 2
    assert kv.stats().hit_tokens == 8
    kv.check_integrity()


def test_adopt_works_at_block_borders_only_and_leaves_a_token() -> None:
    kv = KVManager(num_blocks=20, block_tokens=P)
    leader, follower = kv.admit(_tokens(8), 8), kv.admit(_tokens(8), 8)
    assert leader is not None
    assert follower is not None
    kv.commit(leader, _tokens(8), 8)
    assert kv.adopt(follower, 2, 8) == 0
    assert kv.adopt(follower, 0, 8) == 4
    assert kv.adopt(follower, 4, 8) == 0


def test_commit_registers_output_as_well() -> None:
    kv = KVManager(num_blocks=20, block_tokens=P)
    table = kv.admit(_tokens(3), FAR)
    assert table is not None
    kv.commit(table, _tokens(9), 7)
    assert table.num_committed == 1
    kv.commit(table, _tokens(9), 8)
    assert table.num_committed == 2
    kv.release(table)
    assert len(kv._match(_chain(kv, _tokens(9)), 9)) == 2


def test_a_block_computed_twice_is_registered_once() -> None:
    kv = KVManager(num_blocks=20, block_tokens=P)
    first, second = kv.admit(_tokens(5), 5), kv.admit(_tokens(5), 5)
    assert first is not None
    assert second is not None
    kv.commit(first, _tokens(5), 5)
    kv.commit(second, _tokens(5), 5)
    assert kv.is_writable(second.blocks[0])
    kv.release(second)
    kv.release(first)
    assert kv.stats().cached_blocks == 1
    kv.check_integrity()


def test_check_integrity_finds_a_leak() -> None:
    kv = KVManager(num_blocks=5, block_tokens=P)
    table = kv.admit(_tokens(4), 8)
    assert table is not None
    kv.check_integrity()
    table.blocks.pop()
    with pytest.raises(AssertionError, match="leaked"):
        kv.check_integrity()


def test_check_integrity_finds_an_uncounted_holder() -> None:
    kv = KVManager(num_blocks=9, block_tokens=P)
    first, second = kv.admit(_tokens(4), 4), kv.admit(_tokens(4, 50), 4)
    assert first is not None
    assert second is not None
    second.blocks[0] = first.blocks[0]
    with pytest.raises(AssertionError, match="wrong count"):
        kv.check_integrity()


def test_capacity_leaves_the_null_block_out() -> None:
    assert KVManager(num_blocks=5, block_tokens=P).capacity_tokens == 16
