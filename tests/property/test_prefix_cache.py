"""Pool and prefix cache together: no leak, no alias, and a block always holds what its key says.

The machine keeps the contents of every block as the tensors would. Prompts are drawn from two
tokens and few lengths, so that prefixes meet all the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from luce.kv.block_table import BlockTable
from luce.kv.manager import KVManager
from luce.kv.spec import headroom_blocks

TOKENS = st.integers(0, 1)
MAX_TOKENS = 40


@dataclass(eq=False)
class Holder:
    table: BlockTable
    token_ids: list[int]
    num_computed: int


class CacheMachine(RuleBasedStateMachine):
    """Sequences come, are computed piece by piece, take over each other's work, and go."""

    @initialize(
        num_blocks=st.integers(3, 16),
        block_tokens=st.sampled_from([1, 2, 4]),
        prefix_cache=st.sampled_from([True, True, True, False]),
    )
    def build(self, num_blocks: int, block_tokens: int, prefix_cache: bool) -> None:
        self.kv = KVManager(num_blocks, block_tokens, prefix_cache=prefix_cache)
        self.block_tokens = block_tokens
        self.holders: list[Holder] = []
        self.contents: dict[tuple[int, int], int] = {}

    @rule(token_ids=st.lists(TOKENS, min_size=1, max_size=12), room=st.integers(0, MAX_TOKENS - 12))
    def admit(self, token_ids: list[int], room: int) -> None:
        before = self.kv.available_blocks
        table = self.kv.admit(token_ids, len(token_ids) + room)
        if table is None:
            assert self.kv.available_blocks == before
            assert before < headroom_blocks(
                len(token_ids), len(token_ids) + room, self.block_tokens
            )
            return
        num_found = table.num_found * self.block_tokens
        assert num_found < len(token_ids)
        self.holders.append(Holder(table, token_ids, num_found))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), num=st.integers(1, 8))
    def compute(self, data: st.DataObject, num: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        end = min(len(holder.token_ids), holder.num_computed + num)
        for position in range(holder.num_computed, end):
            block = holder.table.blocks[position // self.block_tokens]
            assert self.kv.is_writable(block), "written while others read it"
            self.contents[block, position % self.block_tokens] = holder.token_ids[position]
        holder.num_computed = end
        self.kv.commit(holder.table, holder.token_ids, end)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        if holder.num_computed < len(holder.token_ids):
            holder.num_computed += self.kv.adopt(
                holder.table, holder.num_computed, len(holder.token_ids)
            )
            assert holder.num_computed < len(holder.token_ids)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), token_id=TOKENS)
    def generate(self, data: st.DataObject, token_id: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        is_done = holder.num_computed == len(holder.token_ids)
        if is_done and self.kv.grow(holder.table, len(holder.token_ids) + 1):
            holder.token_ids.append(token_id)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.kv.release(holder.table)

    @invariant()
    def every_context_reads_back(self) -> None:
        self.kv.check_integrity()
        for holder in self.holders:
            read = [
                self.contents[
                    holder.table.blocks[position // self.block_tokens],
                    position % self.block_tokens,
                ]
                for position in range(holder.num_computed)
            ]
            assert read == holder.token_ids[: holder.num_computed]

    @invariant()
    def blocks_still_to_be_written_have_one_holder(self) -> None:
        for holder in self.holders:
            for block in holder.table.blocks[holder.num_computed // self.block_tokens :]:
                owners = [other for other in self.holders if block in other.table.blocks]
                assert owners == [holder]

    def teardown(self) -> None:
        for holder in getattr(self, "holders", []):
            self.kv.release(holder.table)
            self.kv.check_integrity()
        if hasattr(self, "kv"):
            stats = self.kv.stats()
            assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
            assert stats.hit_tokens <= stats.query_tokens


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestCache = CacheMachine.TestCase
