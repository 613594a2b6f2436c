"""What sequences start from and leave of recurrent states: `CheckpointPool` for block tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from luce.kv.block_table import BlockTable
from luce.kv.checkpoint_pool import CheckpointPool


class SavedStates:
    """Checkpoints behind full blocks; `KVManager` says when tables come, commit and go.

    Args:
        pool: the slots.
        block_tokens: tokens per block.
        is_used: False: the model has no states, or nothing is shared.

    Attributes:
        is_used: whether states are saved, and prefixes gone on from only where they are.
        num_restored: rows that started from a checkpoint so far.
    """

    def __init__(self, pool: CheckpointPool, block_tokens: int, is_used: bool) -> None:
        self._pool = pool
        self._block_tokens = block_tokens
        self.is_used = is_used
        self.num_restored = 0
        self._num_following = 0

    @property
    def num_slots(self) -> int:
        """Checkpoints there can be."""
        return self._pool.num_slots

    def start(self, table: BlockTable) -> int | None:
        """The checkpoint the sequence's row starts from; called when that start is planned.

        Only saves planned with or after it may use the slot again.
        """
        if table.restore_key is None:
            return None
        slot = self._pool.find(table.restore_key)
        self._pool.unpin(table.restore_key)
        table.restore_key = None
        self.num_restored += 1
        return slot

    def reserve(self, table: BlockTable, position: int) -> int | None:
        """A slot for the state that a step planned now leaves at `position`, a block border.

        `keep` keeps it. None: there is one already, or no slot can be had.
        """
        assert position % self._block_tokens == 0, "a checkpoint is behind a full block"
        if not self.is_used:
            return None
        index = position // self._block_tokens - 1
        if index < len(table.keys) and self._pool.find(table.keys[index]) is not None:
            return None
        slot = self._pool.take()
        if slot is not None:
            table.saving[position] = slot
        return slot

    def follow(self, table: BlockTable, position: int) -> int | None:
        """As `reserve`, for a state that is wanted only until the next of its kind.

        So a sequence that goes on has one checkpoint close behind it, and leaves it when it ends.
        At most half of the slots are used so; sequences beyond that have none.
        """
        if table.follows is None:
            if not self.is_used or self._num_following >= self._pool.num_slots // 2:
                return None
            self._num_following += 1
            table.follows = set()
        self._forget_followed(table)
        slot = self.reserve(table, position)
        if slot is not None:
            table.follows.add(position)
        return slot

    def last_resumable(self, keys: Sequence[bytes], first: int, last: int) -> int:
        """The most of the cached blocks `first .. last-1` that can be gone on behind."""
        if not self.is_used:
            return last
        ends = range(last, first, -1)
        return next((n for n in ends if self._pool.find(keys[n - 1]) is not None), first)

    def start_behind(self, table: BlockTable, num_blocks: int) -> None:
        """Let the table's row start from the checkpoint behind its first `num_blocks` blocks."""
        if not self.is_used or not num_blocks:
            return
        if table.restore_key is not None:
            self._pool.unpin(table.restore_key)
        table.restore_key = table.keys[num_blocks - 1]
        self._pool.pin(table.restore_key)

    def keep(self, table: BlockTable, num_computed: int) -> None:
        """Let others find what was saved among the first `num_computed` tokens."""
        for position in [each for each in table.saving if each <= num_computed]:
            key = table.keys[position // self._block_tokens - 1]
            is_new = self._pool.find(key) is None
            self._pool.keep(table.saving.pop(position), key)
            if table.follows is not None and position in table.follows:
                table.follows.remove(position)
                self._forget_followed(table)
                # What another sequence has left there as well is not ours to forget.
                table.followed_key = key if is_new else None

    def release(self, table: BlockTable) -> None:
        """The sequence neither starts nor saves any more."""
        if table.restore_key is not None:
            self._pool.unpin(table.restore_key)
            table.restore_key = None
        while table.saving:
            self._pool.give_back(table.saving.popitem()[1])
        if table.follows is not None:
            self._num_following -= 1
            table.follows = None

    def check_integrity(
        self, tables: Collection[BlockTable], is_cached: Callable[[bytes], bool]
    ) -> None:
        """Compare slots with tables and with the blocks they are behind.

        Raises:
            AssertionError: they disagree.
        """
        saving: list[int] = []
        pinned: list[bytes] = []
        for table in tables:
            saving += table.saving.values()
            pinned += [table.restore_key] if table.restore_key is not None else []
            assert table.follows is None or table.follows <= table.saving.keys()
        num_following = sum(table.follows is not None for table in tables)
        assert num_following == self._num_following, "those that are followed are miscounted"
        self._pool.check_integrity(saving, pinned)
        assert all(map(is_cached, self._pool.kept_keys())), "a checkpoint outlived its block"

    def _forget_followed(self, table: BlockTable) -> None:
        key = table.followed_key
        table.followed_key = None
        if key is not None and not self._pool.is_pinned(key):
            self._pool.forget(key)
