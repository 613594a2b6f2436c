"""A GPU driver's own calls for addresses and for the memory behind them, of CUDA and of HIP.

PyTorch hands out addresses together with memory. The driver can do them apart: reserve a range
of addresses, put memory behind it, take the memory away, and put other memory behind the very
same addresses later. HIP has CUDA's calls under its own names, with the same arguments, structures
and error numbers, so two prefixes are all the difference.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint64, c_ushort
from dataclasses import dataclass
from typing import Any

import torch

_OUT_OF_MEMORY = 2
_ON_DEVICE = 1
_PINNED = 1
_READ_WRITE = 3
_LEAST_GRANULARITY = 0


class Location(Structure):
    """`CUmemLocation`: which device."""

    _fields_ = [("type", c_int), ("id", c_int)]


class _AllocationFlags(Structure):
    _fields_ = [
        ("compression", c_ubyte),
        ("rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    ]


class AllocationProperties(Structure):
    """`CUmemAllocationProp`: memory of a device that nobody else is to see."""

    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("windows_metadata", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    ]


class AccessDescription(Structure):
    """`CUmemAccessDesc`: who may do what."""

    _fields_ = [("location", Location), ("flags", c_int)]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a driver calls things.

    Attributes:
        library: what its file's name begins with.
        prefix: of its functions.
        error_name: the function that names an error.
    """

    library: str
    prefix: str
    error_name: str


DIALECTS = {
    "cuda": Dialect("libcuda.so", "cu", "cuGetErrorName"),
    "hip": Dialect("libamdhip64.so", "hip", "hipDrvGetErrorName"),
}

CALLS: dict[str, tuple[Any, ...]] = {
    "MemGetAllocationGranularity": (POINTER(c_size_t), POINTER(AllocationProperties), c_int),
    "MemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "MemAddressFree": (c_uint64, c_size_t),
    "MemCreate": (POINTER(c_uint64), c_size_t, POINTER(AllocationProperties), c_uint64),
    "MemRelease": (c_uint64,),
    "MemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "MemUnmap": (c_uint64, c_size_t),
    "MemSetAccess": (c_uint64, c_size_t, POINTER(AccessDescription), c_size_t),
}
"""Arguments of each function; all return an error number, 0 for none."""


class DriverError(RuntimeError):
    """The driver refused, for another reason than a lack of memory; nothing came of it."""


class DriverFault(RuntimeError):
    """The driver does not take back what it gave: nobody knows what is behind its addresses."""


class MemoryDriver:
    """Addresses and memory of one device.

    Args:
        library: the driver, as `ctypes` loads it.
        dialect: how it calls things.
        index: the device's number.

    Raises:
        DriverError: it lacks one of the functions, or refuses to say its granularity.

    Attributes:
        granularity: ranges and memory come in multiples of it, in bytes.
    """

    def __init__(self, library: Any, dialect: Dialect, index: int) -> None:
        self._dialect = dialect
        try:
            self._calls = {
                name: _function(library, dialect.prefix + name, arguments)
                for name, arguments in CALLS.items()
            }
            self._error_name = _function(library, dialect.error_name, (c_int, POINTER(c_char_p)))
        except AttributeError as error:
            raise DriverError(f"the driver has no virtual memory: {error}") from error
        where = Location(_ON_DEVICE, index)
        self._kind = AllocationProperties(type=_PINNED, location=where)
        self._access = AccessDescription(where, _READ_WRITE)
        size = c_size_t()
        self._call(
            "MemGetAllocationGranularity", byref(size), byref(self._kind), _LEAST_GRANULARITY
        )
        self.granularity = size.value

    def reserve(self, nbytes: int) -> int:
        """Take a range of addresses; returns the first.

        Raises:
            RuntimeError: there are none.
        """
        address = c_uint64()
        self._call("MemAddressReserve", byref(address), nbytes, 0, 0, 0)
        return address.value

    def free(self, address: int, nbytes: int) -> None:
        """Give a whole range back, with nothing behind it.

        Raises:
            DriverFault: the driver refuses.
        """
        self._take_back("MemAddressFree", address, nbytes)

    def back(self, address: int, nbytes: int) -> int:
        """Put memory behind addresses; what it holds is anything.

        Returns:
            A handle, to take it away again.

        Raises:
            torch.OutOfMemoryError: the device has not so much; nothing was changed.
            DriverError: the driver refuses; nothing was changed.
            DriverFault: it neither goes on nor takes back what it did.
        """
        created = c_uint64()
        self._call("MemCreate", byref(created), nbytes, byref(self._kind), 0)
        handle = created.value
        try:
            self._call("MemMap", address, nbytes, 0, handle, 0)
        except RuntimeError:
            self._take_back("MemRelease", handle)
            raise
        try:
            self._call("MemSetAccess", address, nbytes, byref(self._access), 1)
        except RuntimeError:
            self.strip(address, nbytes, handle)
            raise
        return handle

    def strip(self, address: int, nbytes: int, handle: int) -> None:
        """Take away what `back` put there; the device must be done with it.

        Raises:
            DriverFault: the driver refuses.
        """
        self._take_back("MemUnmap", address, nbytes)
        self._take_back("MemRelease", handle)

    def _take_back(self, name: str, *arguments: object) -> None:
        try:
            self._call(name, *arguments)
        except RuntimeError as error:
            raise DriverFault(str(error)) from error

    def _call(self, name: str, *arguments: object) -> None:
        number = self._calls[name](*arguments)
        if number == 0:
            return
        text = c_char_p()
        self._error_name(number, byref(text))
        what = (text.value or b"unknown").decode("ascii", "replace")
        said = f"{self._dialect.prefix}{name}: error {number} ({what})"
        raise torch.OutOfMemoryError(said) if number == _OUT_OF_MEMORY else DriverError(said)


def _function(library: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, c_int
    return function
