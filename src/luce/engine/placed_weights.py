"""Weights at addresses of their own: they leave a device and come back to the same place.

Tensors are made where PyTorch likes, by whoever makes them. Then what a model reaches is moved,
one storage after the other, into a range of addresses, and every tensor over a storage is bound to
its new place, views and shared tensors too. From then on the range as a whole is copied, emptied
and filled again: large copies from pinned memory, whatever the number of tensors, and nothing that
knows an address (a captured step) needs to be made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from luce.engine.device import (
    Device,
    SideStream,
    free_bytes,
    host_buffer,
    release_cached,
    synchronize,
)
from luce.engine.device_arena import SEGMENT_BYTES, DeviceArena, aligned, log_steps_go
from luce.engine.memory_driver import MemoryDriver
from luce.engine.reached_tensors import reached_tensors
from luce.errors import PlacementError
from luce.units import format_bytes

_RELEASE_BYTES = 1 << 30
"""PyTorch keeps what tensors gave up; it is asked for it each time so much has moved."""


@dataclass(slots=True)
class _Group:
    """A storage and the tensors over it.

    Attributes:
        storage: None once its bytes have moved.
        nbytes: of the storage.
        start: its place in the range.
        tensors: each with its first element's place in the storage, in elements.
    """

    storage: torch.UntypedStorage | None
    nbytes: int
    start: int
    tensors: list[tuple[torch.Tensor, int]] = field(default_factory=list)

    def bind(self, storage: torch.UntypedStorage, start: int) -> None:
        """Let the tensors be over another storage, which holds the same from byte `start` on."""
        for each, first in self.tensors:
            each.set_(storage, start // each.itemsize + first, each.size(), each.stride())


class PlacedWeights:
    """The weights of a model at their place, and their copy in host memory once it was made.

    The copy is of things that do not change, so it stays good.

    Args:
        roots: objects whose tensors are moved.
        device: whose memory; tensors elsewhere are left alone.
        driver: the device's.

    Raises:
        RuntimeError: there are no addresses or no memory; all tensors are where they were.
        PlacementError: neither is there memory to put them back.

    Attributes:
        nbytes: device memory taken while they are there.
    """

    def __init__(self, roots: Iterable[object], device: Device, driver: MemoryDriver) -> None:
        self._device = device
        groups = _grouped(roots, device)
        nbytes = sum(aligned(group.nbytes) for group in groups)
        self._arena = DeviceArena(driver, max(1, nbytes), device)
        self.nbytes = self._arena.nbytes
        self._parked: list[torch.Tensor] = []
        _check_room(groups, device)
        try:
            with torch.inference_mode():
                self._take(groups)
                while self._arena.extend() is not None:
                    pass
        except RuntimeError:
            self._undo(groups)
            self._arena.empty()
            raise
        release_cached(device)

    @property
    def device_bytes(self) -> int:
        """What is on the device now."""
        return self._arena.mapped_bytes

    @property
    def parked_bytes(self) -> int:
        """Host memory of the copy."""
        return sum(there.numel() for there in self._parked)

    def park(self) -> None:
        """Have a copy in host memory.

        Raises:
            RuntimeError: there is no host memory for it; nothing was changed.
        """
        if self._parked:
            return
        parked = []
        for piece in self._arena.pieces:
            there = host_buffer(piece.stop - piece.start, self._device)
            # Other pieces' memory is pinned meanwhile.
            there.copy_(self._arena.bytes[piece], non_blocking=True)
            parked.append(there)
        synchronize(self._device)
        self._parked = parked

    def leave_device(self) -> None:
        """Give the device's memory back; nothing may compute with the tensors meanwhile."""
        self._arena.empty()

    @contextmanager
    def coming_back(self) -> Iterator[None]:
        """Bring everything back to where it was, unless it is there; the copy was made before.

        Copies begin as soon as the first of them has memory to go to. They are under way inside
        and done behind it, waited for once.

        Raises:
            RuntimeError: the device's memory does not hold it. Then, and if anything fails inside,
                it has given back what came.
        """
        if self.device_bytes:
            yield
            return
        stream = SideStream(self._device)
        try:
            with torch.inference_mode(), stream.launching():
                for there in self._parked:
                    piece = self._arena.extend()
                    assert piece is not None, "the copy is of the whole range"
                    self._arena.bytes[piece].copy_(there, non_blocking=True)
            yield
            stream.wait()
        except BaseException:
            self._arena.empty()
            raise

    def close(self) -> None:
        """Give everything back; the tensors cannot be used any more."""
        self._arena.empty()
        self._parked = []

    def _take(self, groups: list[_Group]) -> None:
        moved_bytes = 0
        for group in groups:
            while self._arena.mapped_bytes < group.start + group.nbytes:
                self._arena.extend()
            _move(group, self._arena.bytes, group.start)
            moved_bytes += group.nbytes
            if moved_bytes >= _RELEASE_BYTES:
                moved_bytes = 0
                release_cached(self._device)

    def _undo(self, groups: list[_Group]) -> None:
        """Put everything where PyTorch likes, as it was.

        From the end on: what is empty makes room for what still has to go.

        Raises:
            PlacementError: there is no room; some are here and some there, so none can be parked.
        """
        try:
            with torch.inference_mode():
                for group in reversed([each for each in groups if each.storage is None]):
                    source = self._arena.bytes[group.start : group.start + group.nbytes]
                    group.bind(source.clone().untyped_storage(), 0)
                    self._arena.shrink(group.start)
            synchronize(self._device)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise PlacementError(
                f"{self._device.name}: weights were moved in part and cannot go back: {reason}"
            ) from error


def place_weights(
    roots: Iterable[object], device: Device, driver: MemoryDriver
) -> PlacedWeights | None:
    """Move a model's weights; None, with the reason logged, if they stay where they are.

    Raises:
        PlacementError: they cannot be moved as a whole, nor stay.
    """
    try:
        return PlacedWeights(roots, device, driver)
    except RuntimeError as error:
        log_steps_go(device, error)
        return None


def _move(group: _Group, target: torch.Tensor, start: int) -> None:
    assert group.storage is not None
    source = torch.empty(0, dtype=torch.uint8, device=target.device)
    source.set_(group.storage)
    target[start : start + group.nbytes].copy_(source)
    group.bind(target.untyped_storage(), start)
    group.storage = None


def _grouped(roots: Iterable[object], device: Device) -> list[_Group]:
    """Storages in the order they are reached, each with a place."""
    groups: dict[int, _Group] = {}
    end = 0
    for tensor in reached_tensors(roots, device.torch):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in groups:
            groups[address] = _Group(storage, storage.nbytes(), end)
            end = aligned(end + storage.nbytes())
        groups[address].tensors.append((tensor, int(tensor.storage_offset())))
    return list(groups.values())


def _check_room(groups: list[_Group], device: Device) -> None:
    """Raises: torch.OutOfMemoryError: moving would need more than is free."""
    largest = max((group.nbytes for group in groups), default=0)
    needed = largest + SEGMENT_BYTES + _RELEASE_BYTES
    free = free_bytes(device)
    if free < needed:
        raise torch.OutOfMemoryError(
            f"{format_bytes(needed)} needed to move weights, {format_bytes(free)} free"
        )
