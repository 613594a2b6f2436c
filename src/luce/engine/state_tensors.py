"""Recurrent states of all sequences and checkpoints, in the geometry of a `StateSpec`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from luce.engine.cache_memory import Zeros, fresh_zeros
from luce.engine.ops.gated_delta import LayerState
from luce.kv.spec import StateSpec
from luce.scheduler.plan import RowStart, ScheduledSequence


def num_slots(max_rows: int, num_checkpoints: int) -> int:
    """Slots of rows and checkpoints, and one for lanes that compute nothing."""
    return max_rows + 1 + num_checkpoints


class StateTensors:
    """What recurrent layers keep of every sequence.

    A slot's state of all layers lies together, so that it is copied at once. Slot r is row r's,
    slot `max_rows` is the padding row's, checkpoints have those behind it. On a CPU the memory is
    committed as slots are first used.

    Args:
        spec: the geometry.
        max_rows: rows.
        num_checkpoints: saved states.
        dtype: of the convolutions' inputs.
        device: where.
        zeros: takes the memory.

    Attributes:
        layers: each recurrent layer's part.
        nbytes: address space taken.
    """

    def __init__(
        self,
        spec: StateSpec,
        max_rows: int,
        num_checkpoints: int,
        dtype: torch.dtype,
        device: torch.device,
        zeros: Zeros = fresh_zeros,
    ) -> None:
        assert dtype.itemsize == spec.conv_element_bytes
        self._first_checkpoint = max_rows + 1
        slots = num_slots(max_rows, num_checkpoints)
        conv = zeros((slots, spec.num_layers, spec.conv_elements), dtype, device)
        recurrent = zeros((slots, spec.num_layers, spec.recurrent_elements), torch.float32, device)
        self._stores = (conv, recurrent)
        self.layers = tuple(
            LayerState(conv[:, layer], recurrent[:, layer]) for layer in range(spec.num_layers)
        )
        self.nbytes = conv.nbytes + recurrent.nbytes
        assert self.nbytes == spec.bytes_per_slot * slots

    def start(self, starts: Sequence[RowStart]) -> None:
        """Give rows their first state: a checkpoint's, or zeros."""
        for start in starts:
            for store in self._stores:
                if start.restore_checkpoint is None:
                    store[start.row].zero_()
                else:
                    store[start.row].copy_(store[self._first_checkpoint + start.restore_checkpoint])

    def checkpoint(self, index: int) -> tuple[torch.Tensor, ...]:
        """The parts of a saved state, each contiguous."""
        return tuple(store[self._first_checkpoint + index] for store in self._stores)

    def save(self, items: Sequence[ScheduledSequence]) -> None:
        """Copy the states of rows that ask for it to their checkpoints."""
        for item in items:
            if item.save_checkpoint is not None:
                for store in self._stores:
                    store[self._first_checkpoint + item.save_checkpoint].copy_(store[item.row])
