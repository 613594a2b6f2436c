"""PrefixCache: chained keys, registration, LRU order and leaf-first eviction."""

from __future__ import annotations

import pytest

from luce.kv.prefix_cache import KEY_BYTES, PrefixCache

P = 4


def _keys(cache: PrefixCache, *token_ids: int) -> list[bytes]:
    keys: list[bytes] = []
    cache.extend(keys, token_ids, len(token_ids) // P)
    return keys


def test_equal_prefixes_have_equal_keys_and_only_they() -> None:
    cache = PrefixCache(P)
    first = _keys(cache, 1, 2, 3, 4, 5, 6, 7, 8)
    second = _keys(cache, 1, 2, 3, 4, 5, 6, 7, 9)
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert all(len(key) == KEY_BYTES for key in first)


def test_the_same_tokens_after_another_prefix_have_another_key() -> None:
    cache = PrefixCache(P)
    assert _keys(cache, 1, 1, 1, 1, 5, 6, 7, 8)[1] != _keys(cache, 2, 2, 2, 2, 5, 6, 7, 8)[1]
    assert _keys(cache, 5, 6, 7, 8)[0] != _keys(cache, 1, 1, 1, 1, 5, 6, 7, 8)[1]


def test_the_salt_keeps_caches_apart() -> None:
    tokens = (1, 2, 3, 4)
    assert _keys(PrefixCache(P, b"a"), *tokens) != _keys(PrefixCache(P, b"b"), *tokens)
    assert _keys(PrefixCache(P, b"a"), *tokens) == _keys(PrefixCache(P, b"a"), *tokens)


def test_extend_continues_from_the_keys_there_are() -> None:
    cache = PrefixCache(P)
    tokens = tuple(range(12))
    keys = _keys(cache, *tokens[:4])
    cache.extend(keys, tokens, 3)
    assert keys == _keys(cache, *tokens)


def test_find_returns_what_was_registered_first() -> None:
    cache = PrefixCache(P)
    keys = _keys(cache, 1, 2, 3, 4)
    assert cache.find(keys[0]) is None
    cache.register(keys, 0, 7)
    cache.register(keys, 0, 8)
    assert cache.find(keys[0]) == 7
    assert cache.is_registered(7)
    assert not cache.is_registered(8)


def test_one_block_under_two_keys_is_our_bug() -> None:
    cache = PrefixCache(P)
    cache.register(_keys(cache, 1, 2, 3, 4), 0, 7)
    with pytest.raises(AssertionError, match="another key"):
        cache.register(_keys(cache, 5, 6, 7, 8), 0, 7)


def test_evicts_the_least_recently_used() -> None:
    cache = PrefixCache(P)
    for block in (1, 2, 3):
        cache.register(_keys(cache, block, 0, 0, 0), 0, block)
        cache.park(block)
    cache.unpark(1)
    cache.park(1)
    assert list(cache.idle_blocks()) == [2, 3, 1]
    assert [cache.evict().block for _ in range(3)] == [2, 3, 1]
    assert not any(cache.is_registered(block) for block in (1, 2, 3))
    cache.check_integrity()


def test_evicts_a_leaf_before_the_older_block_it_continues() -> None:
    cache = PrefixCache(P)
    keys = _keys(cache, *range(8))
    cache.register(keys, 0, 1)
    cache.register(keys, 1, 2)
    cache.park(1)
    cache.park(2)
    assert cache.evict().block == 2
    cache.check_integrity()
    assert cache.evict().block == 1


def test_evicts_a_parent_of_a_held_block_if_there_is_nothing_else() -> None:
    cache = PrefixCache(P)
    keys = _keys(cache, *range(8))
    cache.register(keys, 0, 1)
    cache.register(keys, 1, 2)
    cache.park(1)
    assert cache.evict().block == 1
    assert cache.find(keys[1]) == 2
    cache.check_integrity()
    cache.register(keys, 0, 3)
    cache.park(3)
    cache.park(2)
    assert cache.evict().block == 2, "the parent that came back knows its child"


def test_a_block_that_becomes_a_leaf_takes_its_old_place_in_the_order() -> None:
    cache = PrefixCache(P)
    keys = _keys(cache, *range(8))
    cache.register(keys, 0, 1)
    cache.register(keys, 1, 2)
    cache.park(1)
    cache.register(_keys(cache, 9, 9, 9, 9), 0, 3)
    cache.park(3)
    cache.park(2)
    cache.check_integrity()
    # 1 is the oldest, but 2 continues it; once 2 is gone, it comes before 3 could be older.
    assert [cache.evict().block for _ in range(3)] == [3, 2, 1]
    cache.register(keys, 0, 1)
    cache.register(keys, 1, 2)
    cache.park(2)
    cache.park(1)
    cache.register(_keys(cache, 8, 8, 8, 8), 0, 3)
    cache.park(3)
    assert [cache.evict().block for _ in range(3)] == [2, 1, 3]


def test_an_idle_block_that_gets_a_child_is_no_leaf_any_more() -> None:
    cache = PrefixCache(P)
    keys = _keys(cache, *range(8))
    cache.register(keys, 0, 1)
    cache.park(1)
    cache.register(keys, 1, 2)
    cache.register(_keys(cache, 9, 9, 9, 9), 0, 3)
    cache.park(3)
    cache.check_integrity()
    assert cache.evict() == (3, _keys(cache, 9, 9, 9, 9)[0])


def test_blocks_that_come_and_go_do_not_pile_up_in_the_eviction_queue() -> None:
    cache = PrefixCache(P)
    for block in (1, 2):
        cache.register(_keys(cache, block, 0, 0, 0), 0, block)
        cache.park(block)
    for _ in range(1000):
        cache.unpark(1)
        cache.park(1)
    assert len(cache._leaves) < 100
    cache.check_integrity()
    assert [cache.evict().block for _ in range(2)] == [2, 1]


def test_check_integrity_finds_a_leaf_that_would_stay_for_ever() -> None:
    cache = PrefixCache(P)
    cache.register(_keys(cache, 1, 2, 3, 4), 0, 1)
    cache.park(1)
    cache._leaves.clear()
    with pytest.raises(AssertionError, match="never be evicted"):
        cache.check_integrity()


def test_idle_misuse_is_caught() -> None:
    cache = PrefixCache(P)
    with pytest.raises(AssertionError, match="not registered"):
        cache.park(1)
    with pytest.raises(AssertionError, match="nothing to evict"):
        cache.evict()
    cache.register(_keys(cache, 1, 2, 3, 4), 0, 1)
    cache.park(1)
    with pytest.raises(AssertionError, match="idle already"):
        cache.park(1)


def test_check_integrity_finds_a_lost_block() -> None:
    cache = PrefixCache(P)
    cache.register(_keys(cache, 1, 2, 3, 4), 0, 1)
    cache.check_integrity()
    cache._key_of[9] = cache._key_of.pop(1)
    with pytest.raises(AssertionError, match="lost to its key"):
        cache.check_integrity()


def test_check_integrity_finds_wrong_child_counts() -> None:
    cache = PrefixCache(P)
    cache.register(_keys(cache, 1, 2, 3, 4), 0, 1)
    cache._num_children.clear()
    with pytest.raises(AssertionError, match="child counts"):
        cache.check_integrity()
