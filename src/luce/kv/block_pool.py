"""Which blocks are free and how many sequences hold each of the others.

Owns block ids and reference counts; knows nothing of tokens, hashes or sequences.
"""

from __future__ import annotations

from heapq import heappop, heappush

from luce.kv.spec import NULL_BLOCK


class BlockPool:
    """Blocks 1 .. num_blocks-1; block 0 (`NULL_BLOCK`) is never handed out.

    A block is in one of three states: *free* (in the free list), *held* (one or more
    holders), or *idle* (no holder, kept because its contents may be wanted again). The pool
    does not track why a block is idle; its owner does and frees it in the end.

    Low ids are handed out first, so that a fresh sequence gets neighbouring blocks and the
    used part of the tensors stays dense.

    Args:
        num_blocks: blocks of the tensors, `NULL_BLOCK` included; at least 2.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2, "a pool needs the null block and one more"
        self._holders = [0] * num_blocks
        self._is_free = [True] * num_blocks
        self._is_free[NULL_BLOCK] = False
        # What was never handed out needs no place in the heap: all of it is above the rest.
        self._first_fresh = NULL_BLOCK + 1
        self._returned: list[int] = []

    @property
    def num_usable(self) -> int:
        """Blocks that can be handed out at all."""
        return len(self._holders) - 1

    @property
    def num_free(self) -> int:
        """Blocks in the free list."""
        return len(self._returned) + len(self._holders) - self._first_fresh

    def num_holders(self, block: int) -> int:
        """Sequences that hold `block`."""
        return self._holders[block]

    def take(self) -> int:
        """Hand out the lowest free block to one holder; there must be one."""
        return self.take_several(1)[0]

    def take_several(self, count: int) -> list[int]:
        """Hand out the lowest free blocks, ascending, to one holder each; there must be enough."""
        assert count <= self.num_free, "taken from an empty pool"
        returned = self._returned
        blocks = [heappop(returned) for _ in range(min(count, len(returned)))]
        for block in blocks:
            self._is_free[block] = False
            self._holders[block] = 1
        first, stop = self._first_fresh, self._first_fresh + count - len(blocks)
        self._is_free[first:stop] = [False] * (stop - first)
        self._holders[first:stop] = [1] * (stop - first)
        self._first_fresh = stop
        blocks.extend(range(first, stop))
        return blocks

    def share(self, block: int) -> None:
        """Add a holder to a held or idle block."""
        assert block != NULL_BLOCK, "the null block is nobody's"
        assert not self._is_free[block], f"block {block} is free"
        self._holders[block] += 1

    def drop(self, block: int) -> bool:
        """Remove a holder; True if it was the last one, which leaves the block idle."""
        assert self._holders[block] > 0, f"block {block} has no holder"
        self._holders[block] -= 1
        return self._holders[block] == 0

    def free(self, block: int) -> None:
        """Put an idle block back into the free list."""
        assert block != NULL_BLOCK, "the null block is nobody's"
        assert self._holders[block] == 0, f"block {block} is held"
        assert not self._is_free[block], f"block {block} freed twice"
        self._is_free[block] = True
        heappush(self._returned, block)

    def check_integrity(self) -> None:
        """Compare free list, flags and holders.

        Raises:
            AssertionError: they disagree; a block leaked or is used twice.
        """
        free = [*self._returned, *range(self._first_fresh, len(self._holders))]
        assert len(set(free)) == len(free), "a block is in the free list twice"
        flagged = {block for block, is_free in enumerate(self._is_free) if is_free}
        assert set(free) == flagged, "free list and free flags differ"
        assert NULL_BLOCK not in flagged, "the null block is in the free list"
        assert self._holders[NULL_BLOCK] == 0, "the null block has a holder"
        assert min(self._holders) >= 0, "a block has fewer than no holders"
        assert all(self._holders[block] == 0 for block in flagged), "a free block is held"
