"""Host accounting of the KV cache: who holds which blocks, what is shared, what may go.

Every operation is all or nothing, so a refusal leaves nothing to undo. Called from the
worker's engine thread only.

A model with recurrent layers goes on from a cached prefix only where its state was saved too: at
a checkpoint. Its blocks are shared up to the last checkpoint among them, no further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from luce.kv.block_pool import BlockPool
from luce.kv.block_table import BlockTable
from luce.kv.checkpoint_pool import CheckpointPool
from luce.kv.host_tier import BlockStore, HostTier
from luce.kv.prefix_cache import PrefixCache
from luce.kv.recall import Recall
from luce.kv.saved_states import SavedStates
from luce.kv.spec import blocks_for, headroom_blocks


@dataclass(frozen=True, slots=True)
class KVStats:
    """Gauges and counters; `free + cached + held = total`.

    Attributes:
        free_blocks: blocks with no contents worth keeping.
        cached_blocks: blocks nobody holds, kept for their contents until they are needed.
        total_blocks: blocks that can be handed out.
        query_tokens: tokens of all admissions (recomputations included) looked up so far.
        hit_tokens: how many of them did not have to be computed.
        used_checkpoints: saved recurrent states that can be gone on from.
        total_checkpoints: slots for them; 0 for a model without states.
        restored_checkpoints: rows that started from one so far.
        host_blocks: blocks with a copy in host memory.
        recalled_blocks: blocks copied back from there so far.
    """

    free_blocks: int
    cached_blocks: int
    total_blocks: int
    query_tokens: int
    hit_tokens: int
    used_checkpoints: int = 0
    total_checkpoints: int = 0
    restored_checkpoints: int = 0
    host_blocks: int = 0
    recalled_blocks: int = 0


class KVManager:
    """The block pool and its prefix cache behind the few operations a scheduler needs.

    Args:
        num_blocks: blocks of the tensors, the null block included.
        block_tokens: tokens per block.
        salt: keeps apart what may not be shared (model, template, adapter).
        prefix_cache: whether full blocks are shared and kept for later sequences.
        num_checkpoints: slots for saved states; None: the model has none. With 0 nothing can be
            gone on from, so nothing is shared.
        store: host memory for prefixes the pool has no room for; None: they are lost.

    Attributes:
        states: saved states of the recurrent layers.
    """

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        salt: bytes = b"",
        prefix_cache: bool = True,
        num_checkpoints: int | None = None,
        store: BlockStore | None = None,
    ) -> None:
        assert block_tokens > 0, "a block holds at least one token"
        self.block_tokens = block_tokens
        self._pool = BlockPool(num_blocks)
        self._cache = PrefixCache(block_tokens, salt)
        self._shares_prefixes = prefix_cache and num_checkpoints != 0
        self._checkpoints = CheckpointPool(num_checkpoints or 0)
        has_states = num_checkpoints is not None
        self.states = SavedStates(
            self._checkpoints, block_tokens, self._shares_prefixes and has_states
        )
        self._tier = None if store is None or not self._shares_prefixes else HostTier(store)
        self._recall = None if self._tier is None else self._make_recall(self._tier)
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

    def admit(
        self, token_ids: Sequence[int], limit_tokens: int, *, reuse: bool = True
    ) -> BlockTable | None:
        """Reserve all blocks of a prompt and one more (`headroom_blocks`), sharing what is cached.

        Args:
            token_ids: the prompt, or all that is known.
            limit_tokens: tokens the sequence can ever have a place for.
            reuse: False: everything is to be computed, whatever is cached.

        Returns:
            The table, or None, with nothing changed, if the blocks cannot be had now.
        """
        keys: list[bytes] = []
        if self._shares_prefixes and reuse:
            self._cache.extend(keys, token_ids, len(token_ids) // self.block_tokens)
        matched = self._match(keys, len(token_ids))
        found = matched[: self.states.last_resumable(keys, 0, len(matched))]
        num_new = headroom_blocks(len(token_ids), limit_tokens, self.block_tokens) - len(found)
        num_found_idle = sum(self._pool.num_holders(block) == 0 for block in found)
        if num_new > self.available_blocks - num_found_idle:
            return None
        for block in found:
            self._share(block)
        table = BlockTable(
            found, keys, num_committed=len(found), num_found=len(found), num_matched=len(matched)
        )
        self._tables.add(table)
        self.states.start_behind(table, len(found))
        # Only now: what is taken may have to be evicted, and that must be nothing of the above.
        if self._recall is not None:
            self._recall.hold(keys)
        self._take(table.blocks, num_new)
        if self._recall is not None:
            most = self._num_shareable(len(token_ids))
            self._recall.bring_back(table, most, needs_state=self.states.is_used)
            self.states.start_behind(table, table.num_found)
        self._query_tokens += len(token_ids)
        self._hit_tokens += table.num_found * self.block_tokens
        return table

    def adopt(self, table: BlockTable, position: int, num_tokens: int) -> int:
        """Swap reserved blocks for cached ones that others have computed since admission.

        Args:
            table: of a sequence that computes its prompt; with checkpoints, of one whose row
                has not started.
            position: first position not yet computed or in a step under way.
            num_tokens: tokens of the prompt; at least one is left to compute.

        Returns:
            Tokens that need not be computed any more, from `position` on.
        """
        if position % self.block_tokens:
            return 0
        first = position // self.block_tokens
        last = first
        for key in table.keys[first : self._num_shareable(num_tokens)]:
            if self._cache.find(key) is None:
                break
            last += 1
        last = self.states.last_resumable(table.keys, first, last)
        for index in range(first, last):
            block = self._cache.find(table.keys[index])
            assert block is not None, "a block was evicted by sharing another"
            self._exchange(table, index, block)
        if last > first:
            self.states.start_behind(table, last)
        adopted_tokens = (last - first) * self.block_tokens
        self._hit_tokens += adopted_tokens
        return adopted_tokens

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Make `table` hold `num_tokens` tokens; False, with nothing changed, if it cannot now."""
        if num_tokens <= len(table.blocks) * self.block_tokens:
            return True  # nearly every token of a decoding sequence
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
            if num_new:
                self._take(table.blocks, num_new)
        return True

    def commit(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Let others find the full blocks and checkpoints among the first `num_computed` tokens.

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
        self.states.keep(table, num_computed)

    def release(self, table: BlockTable) -> None:
        """Give all blocks of a sequence back; registered ones stay cached, checkpoints too."""
        self._tables.remove(table)
        self.states.release(table)
        while table.blocks:
            self._drop(table.blocks.pop())

    def empty(self) -> int:
        """Forget what the blocks hold: their memory goes. No sequence may live.

        Returns:
            Prefixes that are lost: those the host memory for them does not hold.
        """
        assert not self._tables, "a sequence holds blocks"
        lost = len(self._cache.leaf_keys()) if self._recall is None else self._recall.keep_all()
        for block in self._cache.forget_all():
            self._pool.free(block)
        for key in list(self._checkpoints.kept_keys()):
            self._checkpoints.forget(key)
        return lost

    def known_tokens(self, table: BlockTable) -> int:
        """Leading tokens of what a table holds that a later prompt finds."""
        known = next((i for i, key in enumerate(table.keys) if not self._is_cached(key)), None)
        num_blocks = len(table.keys) if known is None else known
        return self.states.last_resumable(table.keys, 0, num_blocks) * self.block_tokens

    def has_any(self, keys: Sequence[bytes]) -> bool:
        """Whether a block is registered under one of `keys`."""
        return self._cache.finds_any(keys)

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
            used_checkpoints=self._checkpoints.num_kept,
            total_checkpoints=self._checkpoints.num_slots,
            restored_checkpoints=self.states.num_restored,
            host_blocks=0 if self._tier is None else self._tier.num_blocks,
            recalled_blocks=0 if self._recall is None else self._recall.num_recalled,
        )

    def check_integrity(self) -> None:
        """Compare tables, reference counts, free list, hash map and checkpoints.

        Raises:
            AssertionError: a block or slot leaked, is shared without count or kept by nobody.
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
        self.states.check_integrity(self._tables, self._is_cached)
        if self._tier is not None:
            self._tier.check_integrity()

    def _is_cached(self, key: bytes) -> bool:
        return self._cache.find(key) is not None

    def _match(self, keys: Sequence[bytes], num_tokens: int) -> list[int]:
        """Blocks of the longest cached prefix that leaves at least one token to compute."""
        found: list[int] = []
        for key in keys[: self._num_shareable(num_tokens)]:
            block = self._cache.find(key)
            if block is None:
                break
            found.append(block)
        return found

    def _num_shareable(self, num_tokens: int) -> int:
        return (num_tokens - 1) // self.block_tokens

    def _take(self, blocks: list[int], count: int) -> None:
        """Add so many blocks, evicting what is cached where none are free."""
        num_free = min(count, self._pool.num_free)
        blocks.extend(self._pool.take_several(num_free))
        for _ in range(count - num_free):
            evicted = self._cache.evict()
            if self._recall is not None:
                self._recall.keep(evicted)
            self._checkpoints.forget(evicted.key)
            self._pool.free(evicted.block)
            blocks.append(self._pool.take())

    def _make_recall(self, tier: HostTier) -> Recall:
        return Recall(self._cache, self._checkpoints, tier, self._exchange)

    def _exchange(self, table: BlockTable, index: int, block: int) -> None:
        """Put a cached block in place of a reserved one."""
        self._share(block)
        self._drop(table.blocks[index])
        table.blocks[index] = block

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
