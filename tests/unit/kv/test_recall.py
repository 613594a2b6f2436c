"""Prefixes that go to host memory and come back: what `KVManager` accounts for on the way."""

from __future__ import annotations

from collections.abc import Sequence

from luce.kv.manager import KVManager

P = 4
FAR = 10_000


class Store:
    """Writes down what is copied."""

    def __init__(self, num_blocks: int, num_states: int = 0) -> None:
        self.num_blocks = num_blocks
        self.num_states = num_states
        self.log: list[tuple[str, list[int], list[int]]] = []

    def save_blocks(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self.log.append(("save", list(blocks), list(slots)))

    def load_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        self.log.append(("load", list(slots), list(blocks)))

    def save_state(self, checkpoint: int, slot: int) -> None:
        self.log.append(("save state", [checkpoint], [slot]))

    def load_state(self, slot: int, checkpoint: int) -> None:
        self.log.append(("load state", [slot], [checkpoint]))


def _tokens(num: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + num))


def _computed(kv: KVManager, token_ids: tuple[int, ...], *checkpoints: int) -> None:
    table = kv.admit(token_ids, len(token_ids))
    assert table is not None
    kv.states.start(table)
    for position in checkpoints:
        assert kv.states.reserve(table, position) is not None
    kv.commit(table, token_ids, len(token_ids))
    kv.release(table)


def _found(kv: KVManager, token_ids: tuple[int, ...]) -> int:
    table = kv.admit(token_ids, len(token_ids))
    assert table is not None
    found = table.num_found
    kv.states.start(table)
    kv.release(table)
    kv.check_integrity()
    return found


def test_a_chain_is_copied_in_one_call_and_comes_back_in_another() -> None:
    store = Store(8)
    kv = KVManager(10, P, store=store)
    _computed(kv, _tokens(13))
    assert kv.empty() == 0
    assert store.log == [("save", [3, 2, 1], [0, 1, 2])]
    store.log.clear()
    assert _found(kv, _tokens(13)) == 3
    assert store.log == [("load", [2, 1, 0], [1, 2, 3])]
    stats = kv.stats()
    assert (stats.host_blocks, stats.recalled_blocks, stats.hit_tokens) == (3, 3, 12)


def test_what_has_a_copy_is_not_copied_again() -> None:
    store = Store(8)
    kv = KVManager(10, P, store=store)
    _computed(kv, _tokens(13))
    kv.empty()
    _found(kv, _tokens(13))
    store.log.clear()
    assert kv.empty() == 0
    assert store.log == []


def test_a_block_the_pool_gives_up_is_copied_first() -> None:
    store = Store(8)
    kv = KVManager(5, P, store=store)
    _computed(kv, _tokens(9))
    assert kv.admit(_tokens(9, first=100), FAR) is not None
    assert store.log == [("save", [2], [0]), ("save", [1], [1])]
    kv.check_integrity()


def test_the_blocks_taken_for_a_prompt_do_not_push_its_own_copies_out() -> None:
    """Four slots, all full; the prompt's two stay while two others are pushed out."""
    store = Store(4)
    kv = KVManager(5, P, store=store)
    _computed(kv, _tokens(9))
    kv.empty()
    _computed(kv, _tokens(13, first=100))
    assert kv.stats().cached_blocks == 3
    assert _found(kv, _tokens(9)) == 2


def test_blocks_that_are_there_are_shared_and_the_rest_comes_back() -> None:
    store = Store(8)
    kv = KVManager(12, P, store=store)
    _computed(kv, _tokens(13))
    kv.empty()
    _computed(kv, _tokens(5))
    store.log.clear()
    assert _found(kv, _tokens(13)) == 3
    assert [(kind, len(slots)) for kind, slots, _ in store.log] == [("load", 2)]


def test_ends_that_are_lost_are_counted_once_each() -> None:
    kv = KVManager(20, P, store=Store(3))
    _computed(kv, _tokens(13))
    _computed(kv, _tokens(9, first=100))
    _computed(kv, (*_tokens(4), *_tokens(5, first=200)))
    # Of three ends the newest two fit: 200.. with its first block, and one block of 100...
    assert kv.empty() == 2
    assert KVManager(20, P).empty() == 0


def test_without_host_memory_every_end_is_lost() -> None:
    kv = KVManager(20, P)
    _computed(kv, _tokens(13))
    _computed(kv, _tokens(9, first=100))
    assert kv.empty() == 2
    assert (kv.stats().free_blocks, _found(kv, _tokens(13))) == (19, 0)


def test_states_come_back_with_their_blocks() -> None:
    store = Store(8, num_states=2)
    kv = KVManager(12, P, num_checkpoints=2, store=store)
    _computed(kv, _tokens(13), 8)
    assert kv.empty() == 0
    assert [kind for kind, _, _ in store.log] == ["save", "save state"]
    store.log.clear()
    # Of three blocks two can be gone on behind.
    assert _found(kv, _tokens(13)) == 2
    assert [kind for kind, _, _ in store.log] == ["load", "load state"]
    assert kv.stats().used_checkpoints == 1


def test_a_state_without_a_copy_is_a_lost_prefix() -> None:
    kv = KVManager(12, P, num_checkpoints=2, store=Store(8, num_states=1))
    _computed(kv, _tokens(13), 8)
    _computed(kv, _tokens(13, first=100), 8)
    assert kv.empty() == 1
    assert _found(kv, _tokens(13, first=100)) + _found(kv, _tokens(13)) == 2


def test_a_reading_looks_nothing_up() -> None:
    store = Store(8)
    kv = KVManager(12, P, store=store)
    _computed(kv, _tokens(13))
    kv.empty()
    store.log.clear()
    table = kv.admit(_tokens(13), 13, reuse=False)
    assert table is not None
    assert (table.num_found, store.log) == (0, [])
    kv.commit(table, _tokens(13), 13)
    assert kv.known_tokens(table) == 12
    kv.release(table)
    kv.check_integrity()
