"""Copies of KV blocks and saved states in host memory; implements `kv.host_tier.BlockStore`.

A block's copy is its bytes over all layers, in whatever types the cache has, so it goes back
exactly. Host memory is taken a segment at a time as slots are first used; on a GPU it is pinned,
and copies stand in the stream's order: none is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from luce.engine.device import Device, host_buffer
from luce.engine.kv_tensors import KVTensors
from luce.engine.state_tensors import StateTensors
from luce.errors import PlacementError
from luce.kv.spec import KVSpec, StateSpec

_SEGMENT_BYTES = 1 << 26
_MAX_RUN_BLOCKS = 64
"""Blocks gathered on a device before they are sent together."""
_STATE_SHARE = 2


@dataclass(frozen=True, slots=True)
class HostRoom:
    """How much host memory prefixes may take.

    Attributes:
        num_blocks: blocks.
        num_states: saved states.
    """

    num_blocks: int
    num_states: int

    @classmethod
    def within(cls, nbytes: int, spec: KVSpec, state: StateSpec | None) -> HostRoom:
        """As many as fit; with states, which make the blocks useful, they get half."""
        if state is None:
            return cls(nbytes // spec.bytes_per_block, 0)
        num_states = nbytes // _STATE_SHARE // state.bytes_per_slot
        left = nbytes - num_states * state.bytes_per_slot
        return cls(left // spec.bytes_per_block if num_states else 0, num_states)


class HostBlocks:
    """The store.

    Args:
        room: slots.
        tensors: gives the cache and the states there are now; both come anew with the model.
        spec: what a block takes.
        state: what a saved state takes.
        device: where the tensors are.
    """

    def __init__(
        self,
        room: HostRoom,
        tensors: Callable[[], tuple[KVTensors, StateTensors | None]],
        spec: KVSpec,
        state: StateSpec | None,
        device: Device,
    ) -> None:
        self._tensors = tensors
        self._device = device
        shape = (spec.num_layers, spec.bytes_per_block // spec.num_layers)
        self._blocks = _Segments(room.num_blocks, shape, device)
        state_bytes = 1 if state is None else state.bytes_per_slot
        self._states = _Segments(room.num_states, (state_bytes,), device)
        self._most = 1 if device.is_cpu else _MAX_RUN_BLOCKS

    @property
    def num_blocks(self) -> int:
        """Slots for blocks."""
        return self._blocks.num_slots

    @property
    def num_states(self) -> int:
        """Slots for states."""
        return self._states.num_slots

    def save_blocks(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks to slots; see `BlockStore`."""
        self._blocks.provide(slots)
        store = self._tensors()[0].blocks
        with torch.inference_mode():
            for there, first, stop in self._runs(slots):
                ids = blocks[first:stop]
                _copy(there, self._gathered(store, ids))

    def load_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots to blocks; see `BlockStore`."""
        store = self._tensors()[0].blocks
        with torch.inference_mode():
            for there, first, stop in self._runs(slots):
                ids = blocks[first:stop]
                if len(ids) == 1:
                    _copy(store[:, ids[0]], there[0])
                else:
                    sent = there.to(self._device.torch, non_blocking=True)
                    store.index_copy_(1, self._index(ids), sent.transpose(0, 1))

    def save_state(self, checkpoint: int, slot: int) -> None:
        """Copy a checkpoint to a slot; see `BlockStore`."""
        self._states.provide([slot])
        with torch.inference_mode():
            for part, there in self._state_parts(checkpoint, slot):
                _copy(there, part)

    def load_state(self, slot: int, checkpoint: int) -> None:
        """Copy a slot to a checkpoint; see `BlockStore`."""
        with torch.inference_mode():
            for part, there in self._state_parts(checkpoint, slot):
                _copy(part, there)

    def _runs(self, slots: Sequence[int]) -> Iterator[tuple[torch.Tensor, int, int]]:
        """Neighbouring slots of a segment, [n, L, bytes], and which of the slots these are."""
        first = 0
        for stop in range(1, len(slots) + 1):
            is_end = stop == len(slots) or slots[stop] != slots[stop - 1] + 1
            if is_end or stop - first == self._most or self._blocks.begins_segment(slots[stop]):
                yield self._blocks.slots(slots[first], stop - first), first, stop
                first = stop

    def _gathered(self, store: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        if len(ids) == 1:
            return store[:, ids[0]].unsqueeze(0)
        return store.index_select(1, self._index(ids)).transpose(0, 1)

    def _index(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(ids, device=self._device.torch)

    def _state_parts(
        self, checkpoint: int, slot: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The parts of a saved state, and where each is in its slot."""
        states = self._tensors()[1]
        assert states is not None, "the model has no states"
        flat, start = self._states.slots(slot, 1)[0], 0
        for part in states.checkpoint(checkpoint):
            there = flat[start : start + part.nbytes].view(part.dtype).view(part.shape)
            start += part.nbytes
            yield part, there


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy equal shapes; on a GPU it stands in the stream's order."""
    if target.device.type == source.device.type == "cpu":
        # PyTorch wakes its threads for each block, which takes longer than copying it.
        np.copyto(target.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())
    else:
        target.copy_(source, non_blocking=True)


class _Segments:
    """Slots of one shape, in pieces of host memory that are taken when they are first needed."""

    def __init__(self, num_slots: int, shape: tuple[int, ...], device: Device) -> None:
        self.num_slots = num_slots
        self._shape = shape
        self._device = device
        self._slot_bytes = torch.Size(shape).numel()
        self._per_segment = max(1, _SEGMENT_BYTES // self._slot_bytes)
        self._segments: dict[int, torch.Tensor] = {}

    def provide(self, slots: Sequence[int]) -> None:
        """Take the memory of these slots.

        Raises:
            PlacementError: there is none.
        """
        for index in sorted({slot // self._per_segment for slot in slots}):
            if index in self._segments:
                continue
            count = min(self._per_segment, self.num_slots - index * self._per_segment)
            try:
                flat = host_buffer(count * self._slot_bytes, self._device)
            except (RuntimeError, MemoryError) as error:
                raise PlacementError(
                    f"no host memory for cached prefixes: {str(error).splitlines()[0]}"
                ) from error
            self._segments[index] = flat.view(count, *self._shape)

    def begins_segment(self, slot: int) -> bool:
        """Whether the slot before it lies elsewhere."""
        return slot % self._per_segment == 0

    def slots(self, first: int, count: int) -> torch.Tensor:
        """Neighbouring slots of one segment: u8 [count, *shape]."""
        segment, start = divmod(first, self._per_segment)
        return self._segments[segment][start : start + count]
