"""Which slots hold saved recurrent states, under the key of the last block they cover.

A checkpoint is a copy of a sequence's state behind a full block; with the pages up to that block
a later sequence goes on from it. Slots and keys only: which blocks there are is `PrefixCache`'s
business, the tensors are the engine's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, KeysView
from heapq import heapify, heappop, heappush


class CheckpointPool:
    """Slots 0 .. num_slots-1, each *free*, *being saved*, or *kept* under a key.

    A slot is taken when the step that saves to it is planned and kept when that step is applied:
    nobody finds a state that is not there yet. Kept ones go in order of last use. One that a row
    is about to start from is pinned until the plan with that start is made; plans are executed in
    order, so a later save cannot come before the copy.

    Args:
        num_slots: states the engine has room for beside its rows'.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._free = list(range(num_slots))
        heapify(self._free)
        self._saving: set[int] = set()
        self._kept: OrderedDict[bytes, int] = OrderedDict()
        self._pins: Counter[bytes] = Counter()

    @property
    def num_slots(self) -> int:
        """Slots there are."""
        return self._num_slots

    @property
    def num_kept(self) -> int:
        """Checkpoints that can be gone on from."""
        return len(self._kept)

    def kept_keys(self) -> KeysView[bytes]:
        """Keys of what is kept, least recently used first."""
        return self._kept.keys()

    @property
    def can_take(self) -> bool:
        """Whether `take` would give a slot now."""
        return bool(self._free) or any(not self._pins[key] for key in self._kept)

    def find(self, key: bytes) -> int | None:
        """Slot of the state behind the block with this key."""
        return self._kept.get(key)

    def take(self) -> int | None:
        """A slot to save to, at the cost of the least recently used checkpoint if need be.

        Returns:
            None if every slot is pinned or being saved.
        """
        if not self._free:
            victim = next((key for key in self._kept if not self._pins[key]), None)
            if victim is None:
                return None
            self.forget(victim)
        slot = heappop(self._free)
        self._saving.add(slot)
        return slot

    def keep(self, slot: int, key: bytes) -> None:
        """The state is in `slot`: let others find it, unless another slot has the same."""
        if key in self._kept:
            self._kept.move_to_end(key)
            self.give_back(slot)
            return
        self._saving.remove(slot)
        self._kept[key] = slot

    def give_back(self, slot: int) -> None:
        """What was to be saved to `slot` is not wanted any more."""
        self._saving.remove(slot)
        heappush(self._free, slot)

    def pin(self, key: bytes) -> None:
        """A row will start from this checkpoint; it counts as used."""
        self._kept.move_to_end(key)
        self._pins[key] += 1

    def unpin(self, key: bytes) -> None:
        """One row less will start from it."""
        assert self._pins[key] > 0, "unpinned more often than pinned"
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]

    def is_pinned(self, key: bytes) -> bool:
        """Whether a row is about to start from this checkpoint."""
        return self._pins[key] > 0

    def forget(self, key: bytes) -> None:
        """Free the slot kept under `key`, if there is one; it must not be pinned."""
        assert not self._pins[key], "a row is about to start from this checkpoint"
        slot = self._kept.pop(key, None)
        if slot is not None:
            heappush(self._free, slot)

    def check_integrity(self, saving: Iterable[int], pinned: Iterable[bytes]) -> None:
        """Compare slots and pins with what the sequences say.

        Args:
            saving: slot of every save under way.
            pinned: key of every start still to come.

        Raises:
            AssertionError: they disagree; a slot leaked or is used twice.
        """
        used = [*self._free, *self._saving, *self._kept.values()]
        assert sorted(used) == list(range(self._num_slots)), "a slot leaked or is used twice"
        assert sorted(saving) == sorted(self._saving), "saves under way are miscounted"
        assert Counter(pinned) == self._pins, "pins are miscounted"
        assert self._pins.keys() <= self._kept.keys(), "a pinned checkpoint is gone"
