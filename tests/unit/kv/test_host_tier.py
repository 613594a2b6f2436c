from __future__ import annotations

from collections.abc import Sequence

import pytest

from luce.errors import PlacementError
from luce.kv.host_tier import HostTier, Snapshot


class Store:
    """Copies numbers between two dicts."""

    def __init__(self, num_blocks: int, num_states: int = 0) -> None:
        self.num_blocks = num_blocks
        self.num_states = num_states
        self.blocks: dict[int, str] = {}
        self.states: dict[int, str] = {}
        self.slots: dict[int, str] = {}
        self.state_slots: dict[int, str] = {}
        self.is_exhausted = False
        self.num_saved = 0

    def save_blocks(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        if self.is_exhausted:
            raise PlacementError("no host memory")
        assert len(set(slots)) == len(slots)
        self.num_saved += len(blocks)
        for block, slot in zip(blocks, slots, strict=True):
            self.slots[slot] = self.blocks[block]

    def load_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        for block, slot in zip(blocks, slots, strict=True):
            self.blocks[block] = self.slots[slot]

    def save_state(self, checkpoint: int, slot: int) -> None:
        if self.is_exhausted:
            raise PlacementError("no host memory")
        self.state_slots[slot] = self.states[checkpoint]

    def load_state(self, slot: int, checkpoint: int) -> None:
        self.states[checkpoint] = self.state_slots[slot]


def key(number: int) -> bytes:
    return b"k%d" % number


def put(tier: HostTier, store: Store, *numbers: int) -> None:
    for number in numbers:
        store.blocks[number] = f"block {number}"
    tier.put([Snapshot(key(number), number) for number in numbers])
    tier.check_integrity()


def kept(tier: HostTier, *numbers: int) -> list[int]:
    return [number for number in numbers if tier.has_block(key(number))]


def load(tier: HostTier, store: Store, number: int) -> str:
    tier.hold([key(number)])
    tier.load_blocks([key(number)], [99])
    tier.let_go()
    return store.blocks[99]


def test_what_is_kept_comes_back() -> None:
    store = Store(3)
    tier = HostTier(store)
    put(tier, store, 1, 2)
    store.blocks.clear()
    assert (load(tier, store, 1), load(tier, store, 2)) == ("block 1", "block 2")
    assert tier.num_blocks == 2


def test_the_least_recently_used_goes_first() -> None:
    store = Store(2)
    tier = HostTier(store)
    put(tier, store, 1)
    put(tier, store, 2)
    load(tier, store, 1)
    put(tier, store, 3)
    assert kept(tier, 1, 2, 3) == [1, 3]


def test_of_too_many_the_newest_stay() -> None:
    store = Store(2)
    tier = HostTier(store)
    put(tier, store, 9)
    put(tier, store, 1, 2, 3, 4)
    assert kept(tier, 1, 2, 3, 4, 9) == [3, 4]
    # Those that would have gone at once were not copied.
    assert store.num_saved == 3


def test_a_copy_is_made_once() -> None:
    store = Store(4)
    tier = HostTier(store)
    put(tier, store, 1, 2)
    put(tier, store, 1, 2, 3)
    assert store.num_saved == 3
    # And it counts as used again.
    put(tier, store, 4, 5)
    assert kept(tier, 1, 2, 3, 4, 5) == [2, 3, 4, 5]


def test_what_is_held_stays() -> None:
    store = Store(2)
    tier = HostTier(store)
    put(tier, store, 1, 2)
    tier.hold([key(1), key(2)])
    store.blocks[3] = "block 3"
    tier.put([Snapshot(key(3), 3)])
    assert kept(tier, 1, 2, 3) == [1, 2]
    tier.let_go()
    put(tier, store, 3)
    # Of what was held the first counts as used last: a chain loses its end first.
    assert kept(tier, 1, 2, 3) == [1, 3]


def test_only_what_is_held_is_read() -> None:
    store = Store(2)
    tier = HostTier(store)
    put(tier, store, 1)
    with pytest.raises(AssertionError, match="before it is read"):
        tier.load_blocks([key(1)], [5])


def test_no_room_at_all() -> None:
    store = Store(0)
    tier = HostTier(store)
    put(tier, store, 1)
    assert (kept(tier, 1), store.num_saved) == ([], 0)


def test_no_host_memory_after_all_keeps_nothing_and_breaks_nothing() -> None:
    store = Store(2)
    tier = HostTier(store)
    put(tier, store, 1)
    store.is_exhausted = True
    put(tier, store, 2)
    assert kept(tier, 1, 2) == [1]
    store.is_exhausted = False
    put(tier, store, 2)
    assert kept(tier, 1, 2) == [1, 2]


def test_states_go_with_their_blocks() -> None:
    store = Store(2, num_states=2)
    tier = HostTier(store)
    store.states = {0: "state 0", 1: "state 1"}
    store.blocks = {1: "one", 2: "two", 3: "three"}
    tier.put([Snapshot(key(1), 1, 0), Snapshot(key(2), 2)])
    assert (tier.has_state(key(1)), tier.has_state(key(2))) == (True, False)
    store.states.clear()
    tier.hold([key(1)])
    tier.load_state(key(1), 7)
    tier.let_go()
    assert store.states[7] == "state 0"
    tier.put([Snapshot(key(3), 3)])
    tier.check_integrity()
    assert kept(tier, 1, 2, 3) == [1, 3]
    store.blocks[4] = "four"
    tier.put([Snapshot(key(4), 4)])
    tier.check_integrity()
    assert (tier.has_state(key(1)), tier.num_states) == (False, 0)


def test_a_state_that_came_later_is_kept_beside_its_block() -> None:
    store = Store(2, num_states=1)
    tier = HostTier(store)
    put(tier, store, 1)
    store.states[4] = "late"
    tier.put([Snapshot(key(1), 1, 4)])
    assert (tier.has_state(key(1)), store.num_saved) == (True, 1)
    store.blocks[2], store.states[5] = "two", "newer"
    tier.put([Snapshot(key(2), 2, 5)])
    tier.check_integrity()
    assert (tier.has_state(key(1)), tier.has_state(key(2))) == (False, True)


def test_a_state_that_cannot_be_copied_leaves_the_block() -> None:
    store = Store(2, num_states=1)
    tier = HostTier(store)
    put(tier, store, 1)
    store.is_exhausted = True
    tier.put([Snapshot(key(1), 1, 0)])
    tier.check_integrity()
    assert (tier.has_block(key(1)), tier.has_state(key(1))) == (True, False)
