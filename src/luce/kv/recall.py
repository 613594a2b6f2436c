"""Takes prefixes to the host tier and brings them back: what `KVManager` does with the tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from luce.kv.block_table import BlockTable
from luce.kv.checkpoint_pool import CheckpointPool
from luce.kv.host_tier import HostTier, Snapshot
from luce.kv.prefix_cache import Evicted, PrefixCache


class Recall:
    """Between the cache on the device and the copies in host memory.

    Args:
        cache: blocks by key.
        checkpoints: saved states by key.
        tier: copies by key.
        exchange: puts a cached block in place of the one at an index of a table.

    Attributes:
        num_recalled: blocks copied back so far.
    """

    def __init__(
        self,
        cache: PrefixCache,
        checkpoints: CheckpointPool,
        tier: HostTier,
        exchange: Callable[[BlockTable, int, int], None],
    ) -> None:
        self._cache = cache
        self._checkpoints = checkpoints
        self._tier = tier
        self._exchange = exchange
        self.num_recalled = 0

    def hold(self, keys: Sequence[bytes]) -> None:
        """Blocks are about to be taken, and may push copies out: not those of a prompt's keys."""
        self._tier.hold([key for key in keys if self._tier.has_block(key)])

    def bring_back(self, table: BlockTable, most: int, *, needs_state: bool) -> None:
        """Fill a new table's blocks behind those it shares with what the tier has.

        Args:
            table: blocks from `num_found` on are its own; both its counts go up.
            most: leading blocks that may be found at all.
            needs_state: a prefix can be gone on from only where its state is saved.
        """
        keys, first = table.keys, table.num_found
        last = first
        for key in keys[first:most]:
            if self._cache.find(key) is None and not self._tier.has_block(key):
                break
            last += 1
        if needs_state:
            ends = range(last, first, -1)
            last = next((end for end in ends if self._has_state(keys[end - 1])), first)
        self.hold(keys[first:last])
        self._fill(table, range(first, last))
        if needs_state and last > first and self._checkpoints.find(keys[last - 1]) is None:
            slot = self._checkpoints.take()
            assert slot is not None, "a slot was there a moment ago"
            self._tier.load_state(keys[last - 1], slot)
            self._checkpoints.keep(slot, keys[last - 1])
        table.num_found = table.num_committed = last
        self._tier.let_go()

    def keep(self, evicted: Evicted) -> None:
        """A block leaves the device's cache: keep a copy."""
        checkpoint = self._checkpoints.find(evicted.key)
        self._tier.put([Snapshot(evicted.key, evicted.block, checkpoint)])

    def keep_all(self) -> int:
        """Keep copies of all that is cached and held by nobody.

        Returns:
            Prefixes that the tier has no room for: ends of block chains; with states, saved ones.
        """
        idle = [(block, self._cache.key_of(block)) for block in self._cache.idle_blocks()]
        self._tier.put([Snapshot(key, block, self._checkpoints.find(key)) for block, key in idle])
        states = list(self._checkpoints.kept_keys())
        if self._checkpoints.num_slots:
            return sum(not self._tier.has_state(key) for key in states)
        return sum(not self._tier.has_block(key) for key in self._cache.leaf_keys())

    def _has_state(self, key: bytes) -> bool:
        if self._checkpoints.find(key) is not None:
            return True
        return self._tier.has_state(key) and self._checkpoints.can_take

    def _fill(self, table: BlockTable, indices: range) -> None:
        hosted: list[int] = []
        for index in indices:
            block = self._cache.find(table.keys[index])
            if block is None:
                hosted.append(index)
            else:
                self._exchange(table, index, block)
        if not hosted:
            return
        self._tier.load_blocks(
            [table.keys[index] for index in hosted], [table.blocks[index] for index in hosted]
        )
        for index in hosted:
            self._cache.register(table.keys, index, table.blocks[index])
        self.num_recalled += len(hosted)
