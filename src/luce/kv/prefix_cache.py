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

KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Entry:
    block: int
    parent: bytes


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
        self._idle: OrderedDict[int, None] = OrderedDict()

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
        self._idle[block] = None

    def unpark(self, block: int) -> None:
        """An idle block is held again."""
        del self._idle[block]

    def evict(self) -> int:
        """Forget the least recently used idle leaf and return its block.

        Sequences give their blocks back last one first, so the oldest idle block almost
        always is a leaf. It is not if a held block continues it (two sequences computed the
        same block at the same time); then the next oldest leaf goes, and with no leaf left
        the oldest block, whose continuation stays unreachable until it is computed again.
        """
        assert self._idle, "nothing to evict"
        oldest = next(iter(self._idle))
        block = next((idle for idle in self._idle if self._is_leaf(idle)), oldest)
        del self._idle[block]
        entry = self._entries.pop(self._key_of.pop(block))
        self._num_children[entry.parent] -= 1
        if self._num_children[entry.parent] == 0:
            del self._num_children[entry.parent]
        return block

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

    def _parent(self, keys: Sequence[bytes], index: int) -> bytes:
        return keys[index - 1] if index else self._root

    def _is_leaf(self, block: int) -> bool:
        return self._key_of[block] not in self._num_children
