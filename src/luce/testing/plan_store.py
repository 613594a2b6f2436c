"""PlanStore: host memory for the blocks and states of a `PlanEngine`."""

from __future__ import annotations

from collections.abc import Sequence

from luce.errors import PlacementError
from luce.testing.plan_engine import PlanEngine


class PlanStore:
    """Copies what a `PlanEngine` holds, at once, as an engine does in the order of its calls.

    Args:
        engine: its blocks and checkpoints.
        num_blocks: slots for blocks.
        num_states: slots for states.

    Attributes:
        is_full: the host has no memory left: saves fail while it is set.
        num_loaded: blocks copied back so far.
        num_loaded_states: states copied back so far.
    """

    def __init__(self, engine: PlanEngine, num_blocks: int, num_states: int) -> None:
        self._engine = engine
        self._num_blocks = num_blocks
        self._num_states = num_states
        self._blocks: dict[int, tuple[int, ...]] = {}
        self._states: dict[int, tuple[int, ...]] = {}
        self.is_full = False
        self.num_loaded = 0
        self.num_loaded_states = 0

    @property
    def num_blocks(self) -> int:
        """Slots for blocks."""
        return self._num_blocks

    @property
    def num_states(self) -> int:
        """Slots for states."""
        return self._num_states

    def save_blocks(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks to slots.

        Raises:
            PlacementError: `is_full`.
        """
        self._check_room()
        for block, slot in zip(blocks, slots, strict=True):
            self._blocks[slot] = self._engine.block(block)

    def load_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots to blocks."""
        for slot, block in zip(slots, blocks, strict=True):
            self._engine.put_block(block, self._blocks[slot])
        self.num_loaded += len(slots)

    def save_state(self, checkpoint: int, slot: int) -> None:
        """Copy a checkpoint to a slot for states.

        Raises:
            PlacementError: `is_full`.
        """
        self._check_room()
        self._states[slot] = self._engine.checkpoints[checkpoint]

    def load_state(self, slot: int, checkpoint: int) -> None:
        """Copy a slot for states to a checkpoint."""
        self._engine.checkpoints[checkpoint] = self._states[slot]
        self.num_loaded_states += 1

    def _check_room(self) -> None:
        if self.is_full:
            raise PlacementError("no host memory is left")
