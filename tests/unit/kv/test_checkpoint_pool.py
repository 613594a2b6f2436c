"""CheckpointPool: slots that are free, being saved or kept; pins; eviction in order of use."""

from __future__ import annotations

import pytest

from luce.kv.checkpoint_pool import CheckpointPool


def _kept(pool: CheckpointPool, *keys: bytes) -> list[int]:
    slots = []
    for key in keys:
        slot = pool.take()
        assert slot is not None
        pool.keep(slot, key)
        slots.append(slot)
    return slots


def test_a_state_is_found_when_it_is_saved_and_not_before() -> None:
    pool = CheckpointPool(2)
    slot = pool.take()
    assert slot == 0
    assert pool.find(b"a") is None
    pool.check_integrity([0], [])
    pool.keep(0, b"a")
    assert pool.find(b"a") == 0
    assert (pool.num_kept, pool.num_slots) == (1, 2)
    pool.check_integrity([], [])


def test_a_save_that_is_not_wanted_any_more_frees_its_slot() -> None:
    pool = CheckpointPool(1)
    assert pool.take() == 0
    assert pool.take() is None
    pool.give_back(0)
    assert pool.take() == 0


def test_the_least_recently_used_goes_first() -> None:
    pool = CheckpointPool(3)
    slots = _kept(pool, b"a", b"b", b"c")
    pool.pin(b"a")
    pool.unpin(b"a")
    assert pool.take() == slots[1]
    assert pool.find(b"b") is None
    assert list(pool.kept_keys()) == [b"c", b"a"]


def test_the_same_state_saved_twice_is_kept_once_and_counts_as_used() -> None:
    pool = CheckpointPool(3)
    first, _ = _kept(pool, b"a", b"b")
    second = pool.take()
    assert second is not None
    pool.keep(second, b"a")
    assert pool.find(b"a") == first
    assert list(pool.kept_keys()) == [b"b", b"a"]
    assert pool.take() == second


def test_a_pinned_checkpoint_is_not_saved_over() -> None:
    pool = CheckpointPool(2)
    slots = _kept(pool, b"a", b"b")
    pool.pin(b"a")
    pool.pin(b"a")
    assert pool.take() == slots[1]
    assert pool.take() is None
    pool.unpin(b"a")
    assert pool.take() is None, "one row has still to start from it"
    pool.unpin(b"a")
    assert pool.take() == slots[0]


def test_forget_frees_what_is_kept_and_nothing_else() -> None:
    pool = CheckpointPool(1)
    pool.forget(b"nobody's")
    _kept(pool, b"a")
    pool.forget(b"a")
    assert pool.find(b"a") is None
    pool.check_integrity([], [])
    assert pool.take() == 0


def test_misuse_is_our_bug() -> None:
    pool = CheckpointPool(1)
    _kept(pool, b"a")
    with pytest.raises(AssertionError, match="unpinned"):
        pool.unpin(b"a")
    pool.pin(b"a")
    with pytest.raises(AssertionError, match="about to start"):
        pool.forget(b"a")
    with pytest.raises(KeyError):
        pool.give_back(0)
    with pytest.raises(KeyError):
        pool.pin(b"nobody's")


def test_check_integrity_compares_with_what_sequences_say() -> None:
    pool = CheckpointPool(2)
    _kept(pool, b"a")
    assert pool.take() == 1
    pool.pin(b"a")
    pool.check_integrity([1], [b"a"])
    with pytest.raises(AssertionError, match="saves"):
        pool.check_integrity([], [b"a"])
    with pytest.raises(AssertionError, match="pins"):
        pool.check_integrity([1], [])
    pool._saving.clear()
    with pytest.raises(AssertionError, match="leaked"):
        pool.check_integrity([], [b"a"])


def test_without_slots_nothing_is_saved() -> None:
    pool = CheckpointPool(0)
    assert pool.take() is None
    pool.check_integrity([], [])
