"""Host accounting of the KV cache: who holds which blocks, what is shared, what may go.

Every operation is all or nothing, so a refusal leaves nothing to undo. Called from the
worker's engine thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from luce.kv.block_pool import BlockPool
from luce.kv.block_table import BlockTable
from luce.kv.prefix_cache import PrefixCache
from luce.kv.spec import blocks_for


@dataclass(frozen=True, slots=True)
class KVStats:
    """Gauges and counters; `free + cached + held = total`.

    Attributes:
        free_blocks: blocks with no contents worth keeping.
        cached_blocks: blocks nobody holds, kept for their contents until they are needed.
        total_blocks: blocks that can be handed out.
        query_tokens: tokens of all admissions (recomputations included) looked up so far.
        hit_tokens: how many of them did not have to be computed.
    """

    free_blocks: int
    cached_blocks: int
    total_blocks: int
    query_tokens: int
    hit_tokens: int


class KVManager:
    """The block pool and its prefix cache behind the few operations a scheduler needs.

    Args:
        num_blocks: blocks of the tensors, the null block included.
        block_tokens: tokens per block.
        salt: keeps apart what may not be shared (model, template, adapter).
        prefix_cache: whether full blocks are shared and kept for later sequences.
    """

    def __init__(
        self, num_blocks: int, block_tokens: int, salt: bytes = b"", prefix_cache: bool = True
    ) -> None:
        assert block_tokens > 0, "a block holds at least one token"
        self.block_tokens = block_tokens
        self._pool = BlockPool(num_blocks)
        self._cache = PrefixCache(block_tokens, salt)
        self._shares_prefixes = prefix_cache
        self._tables: set[BlockTable] = set()
        self._query_tokens = 0
        self._hit_tokens = 0

    @property
    def capacity_tokens(self) -> int:
        """Tokens the whole pool holds."""
        return self._pool.num_usable * self.block_tokens

    @property
    def available_blocks(self) -> int:
        """Blocks that can be had now: the free ones and the cached ones nobody holds."""
        return self._pool.num_free + self._cache.num_idle

    def headroom_blocks(self, num_tokens: int, limit_tokens: int) -> int:
        """Blocks of a sequence of `num_tokens` with one block of room to grow.

        Args:
            num_tokens: tokens that have or will shortly have their place.
            limit_tokens: tokens the sequence can ever have a place for; no room past it.
        """
        current = blocks_for(num_tokens, self.block_tokens)
        return max(current, min(current + 1, blocks_for(limit_tokens, self.block_tokens)))

    def match(self, keys: Sequence[bytes], num_tokens: int) -> list[int]:
        """Blocks of the longest cached prefix that leaves at least one token to compute.

        Args:
            keys: keys of the full blocks of the prompt.
            num_tokens: tokens of the prompt.
        """
        found: list[int] = []
        for key in keys[: self._num_shareable(num_tokens)]:
            block = self._cache.find(key)
            if block is None:
                break
            found.append(block)
        return found

    def admit(self, token_ids: Sequence[int], limit_tokens: int) -> BlockTable | None:
        """Reserve all blocks of a prompt and one more (`headroom_blocks`), sharing what is cached.

        Returns:
            The table, or None, with nothing changed, if the blocks cannot be had now.
        """
        keys: list[bytes] = []
        if self._shares_prefixes:
            self._cache.extend(keys, token_ids, len(token_ids) // self.block_tokens)
        found = self.match(keys, len(token_ids))
        num_new = self.headroom_blocks(len(token_ids), limit_tokens) - len(found)
        num_found_idle = sum(self._pool.num_holders(block) == 0 for block in found)
        if num_new > self.available_blocks - num_found_idle:
            return None
        for block in found:
            self._share(block)
        blocks = found + [self._take() for _ in range(num_new)]
        table = BlockTable(blocks, keys, num_committed=len(found), num_found=len(found))
        self._tables.add(table)
        self._query_tokens += len(token_ids)
        self._hit_tokens += len(found) * self.block_tokens
        return table

    def adopt(self, table: BlockTable, position: int, num_tokens: int) -> int:
        """Swap reserved blocks for cached ones that others have computed since admission.

        Args:
            table: of a sequence that computes its prompt.
            position: first position not yet computed or in a step under way.
            num_tokens: tokens of the prompt; at least one is left to compute.

        Returns:
            Tokens that need not be computed any more, from `position` on.
        """
        if position % self.block_tokens:
            return 0
        first = position // self.block_tokens
        index = first
        for key in table.keys[first : self._num_shareable(num_tokens)]:
            block = self._cache.find(key)
            if block is None:
                break
            self._share(block)
            self._drop(table.blocks[index])
            table.blocks[index] = block
            index += 1
        adopted_tokens = (index - first) * self.block_tokens
        self._hit_tokens += adopted_tokens
        return adopted_tokens

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Make `table` hold `num_tokens` tokens; False, with nothing changed, if it cannot now."""
        return self.top_up([(table, blocks_for(num_tokens, self.block_tokens))])

    def top_up(self, demands: Sequence[tuple[BlockTable, int]]) -> bool:
        """Make each table hold at least so many blocks, all of them or none.

        Returns:
            False, with nothing changed, if the blocks cannot be had now.
        """
        missing = [max(0, num_blocks - len(table.blocks)) for table, num_blocks in demands]
        if sum(missing) > self.available_blocks:
            return False
        for (table, _), num_new in zip(demands, missing, strict=True):
            table.blocks.extend(self._take() for _ in range(num_new))
        return True

    def commit(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Let other sequences find the full blocks among the first `num_computed` tokens.

        Args:
            table: the sequence's blocks.
            token_ids: all its known tokens, at least `num_computed`.
            num_computed: leading tokens whose keys and values are in the tensors for good.
        """
        num_full = num_computed // self.block_tokens
        if not self._shares_prefixes or num_full <= table.num_committed:
            return
        self._cache.extend(table.keys, token_ids, num_full)
        for index in range(table.num_committed, num_full):
            self._cache.register(table.keys, index, table.blocks[index])
        table.num_committed = num_full

    def release(self, table: BlockTable) -> None:
        """Give all blocks of a sequence back; registered ones stay cached."""
        self._tables.remove(table)
        while table.blocks:
            self._drop(table.blocks.pop())

    def is_cached(self, key: bytes) -> bool:
        """Whether a block is registered under `key`."""
        return self._cache.find(key) is not None

    def is_writable(self, block: int) -> bool:
        """Whether exactly one sequence holds `block` and no other can find it."""
        return self._pool.num_holders(block) == 1 and not self._cache.is_registered(block)

    def stats(self) -> KVStats:
        """Gauges and counters as of now."""
        return KVStats(
            free_blocks=self._pool.num_free,
            cached_blocks=self._cache.num_idle,
            total_blocks=self._pool.num_usable,
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
        )

    def check_integrity(self) -> None:
        """Compare tables, reference counts, free list and hash map.

        Raises:
            AssertionError: a block leaked, is shared without count or is kept by nobody.
        """
        self._pool.check_integrity()
        self._cache.check_integrity()
        held = Counter(block for table in self._tables for block in table.blocks)
        for block, count in held.items():
            assert self._pool.num_holders(block) == count, f"block {block} has a wrong count"
        for block in self._cache.idle_blocks():
            assert self._pool.num_holders(block) == 0, f"idle block {block} is held"
        accounted = self._pool.num_free + self._cache.num_idle + len(held)
        assert accounted == self._pool.num_usable, "a block leaked"
        for table in self._tables:
            assert len(set(table.blocks)) == len(table.blocks), "a table holds a block twice"
            assert table.num_committed <= len(table.blocks), "committed more than is held"

    def _num_shareable(self, num_tokens: int) -> int:
        return (num_tokens - 1) // self.block_tokens

    def _take(self) -> int:
        if self._pool.num_free == 0:
            self._pool.free(self._cache.evict())
        return self._pool.take()

    def _share(self, block: int) -> None:
        if self._pool.num_holders(block) == 0:
            self._cache.unpark(block)
        self._pool.share(block)

    def _drop(self, block: int) -> None:
        if not self._pool.drop(block):
            return
        if self._cache.is_registered(block):
            self._cache.park(block)
        else:
            self._pool.free(block)
