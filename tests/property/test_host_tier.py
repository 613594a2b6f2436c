"""The two tiers of the prefix cache under random traffic: what is found is what was computed."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from luce.errors import PlacementError
from luce.kv.block_table import BlockTable
from luce.kv.manager import KVManager

BLOCK_TOKENS = 2


class Memory:
    """Blocks whose contents are the tokens up to their end; copies of them in slots."""

    def __init__(self, num_blocks: int, num_slots: int) -> None:
        self.blocks: list[tuple[int, ...] | None] = [None] * num_blocks
        self.slots: list[tuple[int, ...] | None] = [None] * num_slots
        self.num_blocks = num_slots
        self.num_states = 0
        self.is_exhausted = False

    def save_blocks(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        if self.is_exhausted:
            raise PlacementError("no host memory")
        for block, slot in zip(blocks, slots, strict=True):
            assert self.blocks[block] is not None, "a block without contents is saved"
            self.slots[slot] = self.blocks[block]

    def load_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        for block, slot in zip(blocks, slots, strict=True):
            self.blocks[block] = self.slots[slot]

    def save_state(self, checkpoint: int, slot: int) -> None:
        raise AssertionError("there are no states")

    load_state = save_state


class Host:
    """A manager, the memory it accounts for, and the sequences that run."""

    def __init__(self, num_blocks: int, num_slots: int) -> None:
        self.memory = Memory(num_blocks, num_slots)
        self.kv = KVManager(num_blocks, BLOCK_TOKENS, store=self.memory)
        self.running: list[tuple[BlockTable, tuple[int, ...]]] = []

    def run(self, tokens: tuple[int, ...]) -> None:
        table = self.kv.admit(tokens, len(tokens))
        if table is None:
            return
        for index in range(table.num_found):
            expected = tokens[: (index + 1) * BLOCK_TOKENS]
            assert self.memory.blocks[table.blocks[index]] == expected, "found what is not there"
        for index in range(table.num_found, len(tokens) // BLOCK_TOKENS):
            assert self.kv.is_writable(table.blocks[index])
            self.memory.blocks[table.blocks[index]] = tokens[: (index + 1) * BLOCK_TOKENS]
        self.kv.commit(table, tokens, len(tokens))
        self.running.append((table, tokens))

    def end(self, index: int) -> None:
        if self.running:
            self.kv.release(self.running.pop(index % len(self.running))[0])

    def swap(self) -> int:
        while self.running:
            self.end(0)
        lost = self.kv.empty()
        stats = self.kv.stats()
        assert stats.free_blocks == stats.total_blocks
        # The device's memory goes, and comes back with anything in it.
        self.memory.blocks = [None] * len(self.memory.blocks)
        return lost


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)
EVENTS = st.one_of(
    st.tuples(st.just("run"), PROMPTS),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("swap"), st.none()),
    st.tuples(st.just("memory"), st.booleans()),
)


@settings(max_examples=300, deadline=None)
@given(st.integers(4, 20), st.integers(0, 12), st.lists(EVENTS, max_size=40))
def test_what_is_found_is_what_was_computed(num_blocks: int, num_slots: int, events) -> None:
    host = Host(num_blocks, num_slots)
    for kind, value in events:
        if kind == "run":
            host.run(value)
        elif kind == "end":
            host.end(value)
        elif kind == "swap":
            host.swap()
        else:
            host.memory.is_exhausted = value
        host.kv.check_integrity()
        assert host.kv.stats().host_blocks <= num_slots


@settings(max_examples=200, deadline=None)
@given(st.lists(PROMPTS, min_size=1, max_size=6))
def test_with_room_for_all_nothing_is_lost(prompts) -> None:
    host = Host(64, 64)
    for prompt in prompts:
        host.run(prompt)
    assert host.swap() == 0
    for prompt in prompts:
        table = host.kv.admit(prompt, len(prompt))
        assert table is not None
        assert table.num_found == (len(prompt) - 1) // BLOCK_TOKENS
        host.kv.release(table)
    host.kv.check_integrity()
