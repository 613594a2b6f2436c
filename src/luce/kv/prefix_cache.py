"""Which blocks hold which tokens: full blocks found again by the hash of all tokens up to
and including theirs.

A key is blake2b over the key of the block before it and the block's own tokens, so equal keys
mean equal whole prefixes, and a key says at which block index it belongs. The first block's
"key before" is the hash of the salt. 16 cryptographic bytes: one tenant must not be able to
build a prompt that finds another's blocks.

Keys and LRU order only; who holds a block is `BlockPool`'s business.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

KEY_BYTES = 16

_MIN_STALE = 64
"""Outdated entries of the eviction queue that are not worth a clean-up."""


@dataclass(frozen=True, slots=True)
class _Entry:
    block: int
    parent: bytes


class Evicted(NamedTuple):
    """A block that nobody finds any more, and the key it had."""

    block: int
    key: bytes


class PrefixCache:
    """Registered blocks by key, and the idle ones among them in order of last use.

    Args:
        block_tokens: tokens per block.
        salt: keeps apart what may not be shared (model, template, adapter).
    """

    def __init__(self, block_tokens: int, salt: bytes = b"") -> None:
        self._block_tokens = block_tokens
        self._format = struct.Struct(f"<{block_tokens}i")
        self._root = blake2b(salt, digest_size=KEY_BYTES).digest()
        self._entries: dict[bytes, _Entry] = {}
        self._key_of: dict[int, bytes] = {}
        self._num_children: dict[bytes, int] = {}
        self._idle: OrderedDict[int, int] = OrderedDict()
        self._ticks = count()
        # Idle leaves as (tick of parking, block), oldest first. Entries whose block was held
        # again or got a child meanwhile are dropped when they come up.
        self._leaves: list[tuple[int, int]] = []

    @property
    def num_idle(self) -> int:
        """Registered blocks without a holder."""
        return len(self._idle)

    def extend(self, keys: list[bytes], token_ids: Sequence[int], num_blocks: int) -> None:
        """Append keys until there is one for each of the first `num_blocks` full blocks.

        Args:
            keys: keys of the leading blocks, changed in place.
            token_ids: tokens from position 0; at least `num_blocks` full blocks of them.
            num_blocks: how many keys there shall be.
        """
        for index in range(len(keys), num_blocks):
            start = index * self._block_tokens
            own = self._format.pack(*token_ids[start : start + self._block_tokens])
            keys.append(blake2b(self._parent(keys, index) + own, digest_size=KEY_BYTES).digest())

    def find(self, key: bytes) -> int | None:
        """Block registered under `key`."""
        entry = self._entries.get(key)
        return None if entry is None else entry.block

    def finds_any(self, keys: Iterable[bytes]) -> bool:
        """Whether a block is registered under one of `keys`."""
        return not self._entries.keys().isdisjoint(keys)

    def key_of(self, block: int) -> bytes:
        """Key of a registered block."""
        return self._key_of[block]

    def leaf_keys(self) -> list[bytes]:
        """Keys of the blocks that no registered one continues."""
        return [key for key in self._entries if key not in self._num_children]

    def is_registered(self, block: int) -> bool:
        """Whether others can find `block`; if so it must never be written again."""
        return block in self._key_of

    def register(self, keys: Sequence[bytes], index: int, block: int) -> None:
        """Let others find `block`, which holds block `index` of a sequence with these keys.

        Does nothing if another block already holds the same tokens.
        """
        key = keys[index]
        if key in self._entries:
            return
        assert block not in self._key_of, f"block {block} is registered under another key"
        parent = self._parent(keys, index)
        self._entries[key] = _Entry(block, parent)
        self._key_of[block] = key
        self._num_children[parent] = self._num_children.get(parent, 0) + 1

    def park(self, block: int) -> None:
        """A registered block lost its last holder: keep it, newest in the LRU order."""
        assert block in self._key_of, f"block {block} is not registered"
        assert block not in self._idle, f"block {block} is idle already"
        self._idle[block] = next(self._ticks)
        self._add_leaf(block)

    def unpark(self, block: int) -> None:
        """An idle block is held again."""
        del self._idle[block]

    def evict(self) -> Evicted:
        """Forget the least recently used idle leaf.

        Sequences give their blocks back last one first, so the oldest idle block almost
        always is a leaf. It is not if a held block continues it (two sequences computed the
        same block at the same time); then the next oldest leaf goes, and with no leaf left
        the oldest block, whose continuation stays unreachable until it is computed again.
        """
        assert self._idle, "nothing to evict"
        block = self._oldest_leaf()
        del self._idle[block]
        key = self._key_of.pop(block)
        parent = self._entries.pop(key).parent
        self._num_children[parent] -= 1
        if self._num_children[parent] == 0:
            del self._num_children[parent]
            if parent in self._entries:
                self._add_leaf(self._entries[parent].block)
        return Evicted(block, key)

    def forget_all(self) -> list[int]:
        """Forget every block; none may have a holder.

        Returns:
            The blocks.
        """
        assert len(self._idle) == len(self._entries), "a registered block is held"
        blocks = list(self._idle)
        for index in (self._entries, self._key_of, self._num_children, self._idle, self._leaves):
            index.clear()
        return blocks

    def idle_blocks(self) -> Iterable[int]:
        """Idle blocks, least recently used first."""
        return self._idle.keys()

    def check_integrity(self) -> None:
        """Compare keys, blocks, child counts and the idle list.

        Raises:
            AssertionError: they disagree.
        """
        assert len(self._entries) == len(self._key_of), "a block has two keys, or a key two blocks"
        for block, key in self._key_of.items():
            assert self._entries[key].block == block, f"block {block} is lost to its key"
        assert self._idle.keys() <= self._key_of.keys(), "an unregistered block is kept idle"
        children: dict[bytes, int] = {}
        for entry in self._entries.values():
            children[entry.parent] = children.get(entry.parent, 0) + 1
        assert children == self._num_children, "child counts are wrong"
        leaves = {(tick, block) for block, tick in self._idle.items() if self._is_leaf(block)}
        assert leaves <= set(self._leaves), "an idle leaf would never be evicted"

    def _parent(self, keys: Sequence[bytes], index: int) -> bytes:
        return keys[index - 1] if index else self._root

    def _is_leaf(self, block: int) -> bool:
        return self._key_of[block] not in self._num_children

    def _add_leaf(self, block: int) -> None:
        """Queue an idle leaf for eviction; nothing else is taken."""
        if block not in self._idle or not self._is_leaf(block):
            return
        heappush(self._leaves, (self._idle[block], block))
        if len(self._leaves) > 2 * len(self._idle) + _MIN_STALE:
            entries = {(tick, idle) for idle, tick in self._idle.items() if self._is_leaf(idle)}
            self._leaves = list(entries)
            heapify(self._leaves)

    def _oldest_leaf(self) -> int:
        """The least recently used idle leaf; without any, the least recently used idle block."""
        while self._leaves:
            tick, block = heappop(self._leaves)
            if self._idle.get(block) == tick and self._is_leaf(block):
                return block
        return next(iter(self._idle))
