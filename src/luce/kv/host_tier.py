"""Which prefix blocks have a copy in host memory: the second tier of the prefix cache.

Blocks come here when the device's cache gives them up, and all at once when the model is evicted;
they go back when a prompt begins with them. Copies are keyed as the blocks are, bounded, and the
least recently used go first. A copy stays when its block is brought back: the block's contents
never change, so the next eviction has less to do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

from luce.errors import PlacementError


class BlockStore(Protocol):
    """Host memory for blocks and states. Copies are made in the order of the calls.

    A step launched after a call sees what it copied.
    """

    @property
    def num_blocks(self) -> int:
        """Slots for blocks."""

    @property
    def num_states(self) -> int:
        """Slots for saved recurrent states; 0 for a model without such."""

    def save_blocks(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks to slots.

        Raises:
            PlacementError: there is no host memory after all; nothing was copied.
        """

    def load_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots to blocks."""

    def save_state(self, checkpoint: int, slot: int) -> None:
        """Copy a checkpoint to a slot for states.

        Raises:
            PlacementError: as `save_blocks`.
        """

    def load_state(self, slot: int, checkpoint: int) -> None:
        """Copy a slot for states to a checkpoint."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A block to be kept.

    Attributes:
        key: of the block.
        block: where it is.
        checkpoint: where the recurrent state behind it is saved, None if it is not.
    """

    key: bytes
    block: int
    checkpoint: int | None = None


class HostTier:
    """Keys of the copies, in order of last use.

    Args:
        store: where copies are.
    """

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._blocks = _SlotMap(store.num_blocks)
        self._states = _SlotMap(store.num_states)
        self._held: set[bytes] = set()

    @property
    def num_blocks(self) -> int:
        """Blocks that have a copy."""
        return len(self._blocks)

    @property
    def num_states(self) -> int:
        """States that have a copy."""
        return len(self._states)

    def has_block(self, key: bytes) -> bool:
        """Whether the block of this key has a copy."""
        return key in self._blocks

    def has_state(self, key: bytes) -> bool:
        """Whether the state behind the block of this key has a copy."""
        return key in self._states

    def put(self, snapshots: Sequence[Snapshot]) -> None:
        """Keep copies of blocks and states, as many as there is room for.

        Args:
            snapshots: least recently used first; of too many the first ones are left out.
        """
        snapshots = snapshots[-self._store.num_blocks :] if self._store.num_blocks else []
        fresh: list[tuple[Snapshot, int]] = []
        for each in snapshots:
            if each.key in self._blocks:
                self._blocks.touch(each.key)
                continue
            slot = self._blocks.take(each.key, self._held, self._forget_state)
            if slot is not None:
                fresh.append((each, slot))
        # A key that came late may have pushed out one that came early.
        fresh = [(each, slot) for each, slot in fresh if self._blocks.find(each.key) == slot]
        if fresh and not self._save_blocks(fresh):
            return
        for each in snapshots:
            if each.checkpoint is not None and each.key in self._blocks:
                self._save_state(each.key, each.checkpoint)

    def hold(self, keys: Iterable[bytes]) -> None:
        """Let no copy of these go until `let_go`; they count as used, the first one last."""
        for key in reversed(list(keys)):
            self._held.add(key)
            self._blocks.touch(key)
            if key in self._states:
                self._states.touch(key)

    def let_go(self) -> None:
        """Whatever is held may go again."""
        self._held.clear()

    def load_blocks(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Copy the blocks of these keys, which are held, back into `blocks`."""
        assert self._held.issuperset(keys), "a copy may go before it is read"
        self._store.load_blocks([self._blocks[key] for key in keys], blocks)

    def load_state(self, key: bytes, checkpoint: int) -> None:
        """Copy the state behind the block of this key, which is held, to a checkpoint."""
        assert key in self._held, "a copy may go before it is read"
        self._store.load_state(self._states[key], checkpoint)

    def check_integrity(self) -> None:
        """Compare slots and keys.

        Raises:
            AssertionError: they disagree.
        """
        self._blocks.check_integrity()
        self._states.check_integrity()
        assert self._states.keys() <= self._blocks.keys(), "a state is kept without its block"
        assert not self._held, "copies are held while nothing reads them"

    def _save_blocks(self, fresh: list[tuple[Snapshot, int]]) -> bool:
        try:
            self._store.save_blocks([each.block for each, _ in fresh], [slot for _, slot in fresh])
        except PlacementError:
            for each, _ in fresh:
                self._blocks.drop(each.key)
            return False
        return True

    def _save_state(self, key: bytes, checkpoint: int) -> None:
        if key in self._states:
            self._states.touch(key)
            return
        slot = self._states.take(key, self._held, lambda _: None)
        if slot is None:
            return
        try:
            self._store.save_state(checkpoint, slot)
        except PlacementError:
            self._states.drop(key)

    def _forget_state(self, key: bytes) -> None:
        if key in self._states:
            self._states.drop(key)


class _SlotMap:
    """Slots 0 .. num_slots-1, each free or under a key; keys in order of last use."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._free = list(range(num_slots))
        heapify(self._free)
        self._slots: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slots

    def __getitem__(self, key: bytes) -> int:
        return self._slots[key]

    def keys(self) -> set[bytes]:
        """All keys."""
        return set(self._slots)

    def find(self, key: bytes) -> int | None:
        """The key's slot."""
        return self._slots.get(key)

    def touch(self, key: bytes) -> None:
        """It was used."""
        self._slots.move_to_end(key)

    def take(self, key: bytes, held: set[bytes], forget: Callable[[bytes], None]) -> int | None:
        """A slot for a new key, the least recently used one's if need be.

        Args:
            key: not here yet.
            held: keys whose slots are not taken.
            forget: called with the key that loses its slot.

        Returns:
            None if every slot is held, or there are none.
        """
        if not self._free:
            victim = next((each for each in self._slots if each not in held), None)
            if victim is None:
                return None
            self.drop(victim)
            forget(victim)
        slot = heappop(self._free)
        self._slots[key] = slot
        return slot

    def drop(self, key: bytes) -> None:
        """Free the key's slot."""
        heappush(self._free, self._slots.pop(key))

    def check_integrity(self) -> None:
        """Every slot is in one place.

        Raises:
            AssertionError: one is not.
        """
        used = [*self._free, *self._slots.values()]
        assert sorted(used) == list(range(self._num_slots)), "a slot leaked or is used twice"
