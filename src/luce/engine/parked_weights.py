"""Weights parked in host memory as they are on the device, and back at the bus's full speed.

What a model computes with lies in many tensors, some of which share memory (a tied embedding) or
are laid out by an operation as it likes. So memory is parked, not tensors: the bytes of every
storage the model reaches are copied, the storage is emptied and later filled again. Views and
shared tensors stay what they were, and nothing needs to be bound anew. What keeps addresses
(captured steps) must be dropped before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from luce.engine.device import Device, host_buffer, synchronize
from luce.engine.reached_tensors import reached_tensors

_SEGMENT_BYTES = 1 << 28
"""Pinned memory is handed out in powers of two; one piece of the whole size could waste half."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Bytes of a storage and where they are parked."""

    storage: int
    start: int
    parked: torch.Tensor


class ParkedWeights:
    """A copy in host memory of what objects hold on a device.

    The copy is of things that do not change, so it stays good: the model can go back and leave
    again without another.

    Args:
        roots: objects whose tensors are parked, reached through attributes and containers.
        device: whose memory; others' is left alone.

    Raises:
        RuntimeError: there is no host memory for it; nothing was changed.

    Attributes:
        nbytes: host memory taken.
    """

    def __init__(self, roots: Iterable[object], device: Device) -> None:
        self._device = device
        self._storages = list(_storages(roots, device.torch))
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._is_on_device = True
        self.nbytes = sum(self._sizes)
        self._runs = list(self._laid_out())
        for run in self._runs:
            run.parked.copy_(self._bytes_of(run), non_blocking=True)
        synchronize(device)

    @property
    def device_bytes(self) -> int:
        """What is on the device now."""
        return self.nbytes if self._is_on_device else 0

    def leave_device(self) -> None:
        """Give the device's memory back; nothing may compute with the tensors until `return_`."""
        for storage in self._storages:
            storage.resize_(0)
        self._is_on_device = False

    def return_(self) -> None:
        """Bring everything back, to other addresses, unless it is there.

        Raises:
            RuntimeError: the device's memory does not hold it; `leave_device` frees what came.
        """
        if self._is_on_device:
            return
        for storage, size in zip(self._storages, self._sizes, strict=True):
            storage.resize_(size)
        for run in self._runs:
            self._bytes_of(run).copy_(run.parked, non_blocking=True)
        synchronize(self._device)
        self._is_on_device = True

    def _laid_out(self) -> Iterator[_Run]:
        """Places for all storages, end to end in segments."""
        left = self.nbytes
        segment = torch.empty(0, dtype=torch.uint8)
        used = 0
        for index, size in enumerate(self._sizes):
            start = 0
            while start < size:
                if used == segment.numel():
                    segment, used = host_buffer(min(left, _SEGMENT_BYTES), self._device), 0
                count = min(size - start, segment.numel() - used)
                yield _Run(index, start, segment[used : used + count])
                start += count
                used += count
                left -= count

    def _bytes_of(self, run: _Run) -> torch.Tensor:
        storage = self._storages[run.storage]
        flat = torch.empty(0, dtype=torch.uint8, device=self._device.torch)
        flat.set_(storage)
        return flat[run.start : run.start + run.parked.numel()]


def _storages(roots: Iterable[object], device: torch.device) -> Iterator[torch.UntypedStorage]:
    """Memory of all tensors that objects reach, each once."""
    addresses: set[int] = set()
    for tensor in reached_tensors(roots, device):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in addresses:
            addresses.add(storage.data_ptr())
            yield storage
