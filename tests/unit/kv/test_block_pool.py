"""BlockPool: ids, holders, the free list and the check that finds them broken."""

from __future__ import annotations

import pytest

from luce.kv.block_pool import BlockPool
from luce.kv.spec import NULL_BLOCK


def test_hands_out_low_ids_and_never_the_null_block() -> None:
    pool = BlockPool(5)
    assert [pool.take() for _ in range(4)] == [1, 2, 3, 4]
    assert pool.num_free == 0
    assert pool.num_usable == 4


def test_a_freed_low_id_comes_before_a_higher_one() -> None:
    pool = BlockPool(6)
    blocks = [pool.take() for _ in range(4)]
    for block in (blocks[2], blocks[0]):
        assert pool.drop(block)
        pool.free(block)
    assert [pool.take(), pool.take(), pool.take()] == [1, 3, 5]


def test_several_are_those_that_one_by_one_would_be() -> None:
    pools = BlockPool(12), BlockPool(12)
    for pool in pools:
        for block in pool.take_several(6)[1:4:2]:
            pool.drop(block)
            pool.free(block)
    one_by_one = [pools[0].take() for _ in range(5)]
    assert pools[1].take_several(5) == one_by_one == [2, 4, 7, 8, 9]
    assert pools[1].take_several(0) == []
    pools[1].check_integrity()
    assert pools[1].num_free == pools[0].num_free == 2
    with pytest.raises(AssertionError, match="empty pool"):
        pools[1].take_several(3)


def test_the_last_holder_leaves_a_block_idle_not_free() -> None:
    pool = BlockPool(3)
    block = pool.take()
    pool.share(block)
    assert pool.num_holders(block) == 2
    assert not pool.drop(block)
    assert pool.drop(block)
    assert pool.num_free == 1
    pool.share(block)
    assert pool.num_holders(block) == 1
    pool.check_integrity()


def test_taking_from_an_empty_pool_is_our_bug() -> None:
    pool = BlockPool(2)
    pool.take()
    with pytest.raises(AssertionError, match="empty pool"):
        pool.take()


def test_misuse_is_caught_at_once() -> None:
    pool = BlockPool(4)
    block = pool.take()
    with pytest.raises(AssertionError, match="is held"):
        pool.free(block)
    pool.drop(block)
    with pytest.raises(AssertionError, match="no holder"):
        pool.drop(block)
    pool.free(block)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(block)
    with pytest.raises(AssertionError, match="is free"):
        pool.share(block)
    with pytest.raises(AssertionError, match="nobody's"):
        pool.share(NULL_BLOCK)
    with pytest.raises(AssertionError, match="nobody's"):
        pool.free(NULL_BLOCK)


def test_a_pool_without_a_usable_block_is_refused() -> None:
    with pytest.raises(AssertionError, match="one more"):
        BlockPool(1)


def test_check_integrity_finds_a_held_block_in_the_free_list() -> None:
    pool = BlockPool(4)
    block = pool.take()
    pool.check_integrity()
    pool._returned.append(block)
    with pytest.raises(AssertionError, match="free flags differ"):
        pool.check_integrity()


def test_check_integrity_finds_a_block_listed_twice() -> None:
    pool = BlockPool(4)
    pool._returned.append(2)
    with pytest.raises(AssertionError, match="twice"):
        pool.check_integrity()
