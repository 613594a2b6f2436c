"""Where a model's cache and recurrent states lie."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from luce.engine.device import Device
from luce.engine.device_arena import DeviceArena, aligned
from luce.engine.memory_driver import DriverError, MemoryDriver

_log = logging.getLogger(__name__)

Zeros = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]
"""Makes a tensor of zeros of a shape and type, on a device."""


def fresh_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory of PyTorch's; on a CPU committed page by page as it is first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every byte; numpy asks the system for pages that are zero already.
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


class CacheMemory:
    """A range of addresses that tensors of zeros are taken from, one behind the other.

    They can lose their memory and get other memory, zeros again, at the same addresses.

    Args:
        driver: the device's.
        sizes: bytes of each tensor that will be taken.
        device: which.

    Raises:
        torch.OutOfMemoryError: the device has not so much.
        DriverError: the driver refuses.
    """

    def __init__(self, driver: MemoryDriver, sizes: Sequence[int], device: Device) -> None:
        self._arena = DeviceArena(driver, sum(map(aligned, sizes)), device)
        self._taken = 0
        self.return_()

    @property
    def nbytes(self) -> int:
        """Device memory taken while it is there."""
        return self._arena.nbytes

    def zeros(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """The next tensor; see `Zeros`."""
        del device  # it is the arena's
        start = self._taken
        stop = start + math.prod(shape) * dtype.itemsize
        assert stop <= self.nbytes, "more is taken than was said"
        self._taken = aligned(stop)
        return self._arena.bytes[start:stop].view(dtype).view(shape)

    def leave(self) -> None:
        """Give the memory back; nothing may use the tensors until `return_`.

        Raises:
            RuntimeError: the device failed.
        """
        self._arena.empty()

    def return_(self) -> None:
        """Have zeros everywhere.

        Raises:
            torch.OutOfMemoryError: the device has not so much; nothing was taken.
            DriverError: likewise.
        """
        self._arena.fill_up()
        with torch.inference_mode():
            self._arena.bytes.zero_()


def cache_memory(
    driver: MemoryDriver | None, sizes: Sequence[int], device: Device
) -> CacheMemory | None:
    """Memory for tensors of these sizes; None, with the reason logged, if PyTorch is to have it.

    Raises:
        torch.OutOfMemoryError: the device has not so much.
    """
    if driver is None or not any(sizes):
        return None
    try:
        return CacheMemory(driver, sizes, device)
    except DriverError as error:
        _log.warning(
            "captured steps go with an eviction",
            extra={"device": device.name, "reason": str(error)},
        )
        return None
