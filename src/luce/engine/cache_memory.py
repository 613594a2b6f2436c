"""Where a model's cache and recurrent states lie."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Callable, Sequence

import torch

from luce.engine.device import Device
from luce.engine.device_arena import DeviceArena, aligned, log_steps_go
from luce.engine.memory_driver import DriverError, MemoryDriver

_HUGE_PAGE = 2 << 20
_LARGE = 2 * _HUGE_PAGE

Zeros = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]
"""Makes a tensor of zeros of a shape and type, on a device."""


def fresh_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory of PyTorch's; on a CPU committed page by page as it is first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every byte; the system's own pages are zero already.
    nbytes = math.prod(shape) * dtype.itemsize
    raw = _zero_pages(nbytes)
    return raw[:nbytes].view(dtype).view(shape)


def _zero_pages(nbytes: int) -> torch.Tensor:
    """At least so many bytes; large ones in huge pages, of which the first begins with them.

    Each layer's blocks are used from its beginning: elsewhere it would commit two pages at once.
    """
    is_large = nbytes >= _LARGE
    pages = mmap.mmap(
        -1, max(1, nbytes) + is_large * _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    raw = torch.frombuffer(pages, dtype=torch.uint8)
    if not is_large:
        return raw
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Some kernels know the name and have no such pages.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return raw[-raw.data_ptr() % _HUGE_PAGE :]


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
        log_steps_go(device, error)
        return None
