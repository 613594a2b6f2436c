"""A range of a device's addresses whose memory comes and goes while tensors over it stay."""

from __future__ import annotations

import logging
import weakref

import torch

from luce.engine.device import Device, release_cached, synchronize
from luce.engine.memory_driver import MemoryDriver

_log = logging.getLogger(__name__)

SEGMENT_BYTES = 1 << 29
"""Memory is taken and given back in such pieces: few calls, and copies can begin with the first."""
ALIGNMENT = 512
"""Of tensors in a range: as PyTorch's own, which kernels may count on."""


def aligned(nbytes: int) -> int:
    """The next place where a tensor may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def log_steps_go(device: Device, error: Exception) -> None:
    """Say why captured steps will not outlive an eviction: memory stays where PyTorch put it."""
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    fields = {"device": device.name, "reason": reason}
    _log.warning("captured steps go with an eviction", extra=fields)


class _Foreign:
    """Memory that is not PyTorch's, as it is told of such."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.__cuda_array_interface__ = {
            "version": 2,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }
        self.owner = owner


def bytes_at(address: int, nbytes: int, owner: object, device: Device) -> torch.Tensor:
    """Memory of a GPU that is not PyTorch's as a tensor, u8 [nbytes]; there must be some now.

    Args:
        address: of the first byte.
        nbytes: how many.
        owner: lives as long as any tensor over the memory.
        device: whose memory it is.

    Raises:
        RuntimeError: PyTorch does not take it for the device's.
    """
    return torch.as_tensor(_Foreign(address, nbytes, owner), device=device.torch)


class _Range:
    """What must be given back; lives as long as a tensor over it."""

    def __init__(self, driver: MemoryDriver, nbytes: int, device: Device) -> None:
        self.driver = driver
        self.nbytes = nbytes
        self.device = device
        self.address = driver.reserve(nbytes)
        self.segments: list[tuple[int, int, int]] = []
        """Start, size and handle of each that has memory."""

    def strip(self, first: int = 0) -> None:
        """Take memory away from all segments that begin at `first` or behind it, once the device
        is done with them.

        Raises:
            RuntimeError: the device failed.
        """
        if self.segments and self.segments[-1][0] >= first:
            synchronize(self.device)
        while self.segments and self.segments[-1][0] >= first:
            start, size, handle = self.segments[-1]
            self.driver.strip(self.address + start, size, handle)
            self.segments.pop()

    def end(self) -> None:
        """Nobody can reach it any more."""
        try:
            self.strip()
            self.driver.free(self.address, self.nbytes)
        except RuntimeError as error:
            # There is nobody left to tell: it goes with the process.
            _log.warning("addresses of a device stay taken", extra={"error": str(error)})


class _Owner:
    """Held by every tensor over a range."""


class DeviceArena:
    """The range.

    Args:
        driver: the device's.
        nbytes: room wanted; it comes rounded up.
        device: which.

    Raises:
        RuntimeError: there are no addresses.

    Attributes:
        nbytes: its size.
    """

    def __init__(self, driver: MemoryDriver, nbytes: int, device: Device) -> None:
        self._device = device
        self.nbytes = -(-nbytes // driver.granularity) * driver.granularity
        self._step = max(1, SEGMENT_BYTES // driver.granularity) * driver.granularity
        self._range = _Range(driver, self.nbytes, device)
        self._owner = _Owner()
        # At the end of the process the driver takes all back, in an order it knows best.
        weakref.finalize(self._owner, self._range.end).atexit = False
        self._bytes: torch.Tensor | None = None

    @property
    def bytes(self) -> torch.Tensor:
        """All of it, u8 [nbytes]; what has no memory must not be touched."""
        assert self._bytes is not None, "it never had memory"
        return self._bytes

    @property
    def address(self) -> int:
        """Of the first byte."""
        return self._range.address

    @property
    def pieces(self) -> list[slice]:
        """What `extend` gives memory, one after the other."""
        starts = range(0, self.nbytes, self._step)
        return [slice(start, min(start + self._step, self.nbytes)) for start in starts]

    @property
    def mapped_bytes(self) -> int:
        """What has memory now: the first so many bytes."""
        return sum(size for _, size, _ in self._range.segments)

    def extend(self) -> slice | None:
        """Give the next piece memory, which holds anything; None: all of it has some.

        Raises:
            torch.OutOfMemoryError: the device has not so much.
            DriverError: the driver refuses. In both cases nothing was changed.
        """
        start = self.mapped_bytes
        size = min(self._step, self.nbytes - start)
        if size == 0:
            return None
        handle = self._backed(self._range.address + start, size)
        self._range.segments.append((start, size, handle))
        if self._bytes is None:
            self._bytes = bytes_at(self._range.address, self.nbytes, self._owner, self._device)
        return slice(start, start + size)

    def _backed(self, address: int, size: int) -> int:
        try:
            return self._range.driver.back(address, size)
        except torch.OutOfMemoryError:
            # As PyTorch does it: what it keeps for itself may be enough.
            release_cached(self._device)
            return self._range.driver.back(address, size)

    def fill_up(self) -> None:
        """Have memory everywhere.

        Raises:
            torch.OutOfMemoryError: the device has not so much; none of it has any then.
            DriverError: likewise.
        """
        try:
            while self.extend() is not None:
                pass
        except BaseException:
            self.empty()
            raise

    def shrink(self, nbytes: int) -> None:
        """Give back pieces that hold none of the first so many bytes.

        Raises:
            RuntimeError: the device failed.
        """
        self._range.strip(nbytes)

    def empty(self) -> None:
        """Give the memory back; addresses and tensors stay, and must not be used.

        Raises:
            RuntimeError: the device failed.
        """
        self._range.strip()
