"""A driver in host memory: addresses, memory behind them, and faults where there is none.

Its functions are real C functions with the arguments of the CUDA driver's, so they are called as
those are. Addresses are a range of this process without any access, memory is a file in memory
that is mapped there. What touches addresses without memory ends the process, as on a device.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import Counter
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from luce.engine.memory_driver import CALLS, DIALECTS, Dialect

OUT_OF_MEMORY = 2
NOT_SUPPORTED = 801
_NAMES = {OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY", NOT_SUPPORTED: b"CUDA_ERROR_NOT_SUPPORTED"}
_INVALID = 1
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_NO_ACCESS = 0
_RUBBISH = b"\xff"
"""What new memory holds: not a number, in every type."""


@dataclass(slots=True)
class _Memory:
    file: int
    nbytes: int
    address: int | None = None


@dataclass(slots=True)
class FakeMemoryDriver:
    """The library.

    Attributes:
        capacity_bytes: of the device.
        granularity: of ranges and memory.
        calls: how often each function was called, by its name without the prefix.
        wrong: calls that a correct user does not make.
        dialect: whose names the functions have.
    """

    capacity_bytes: int = 1 << 40
    granularity: int = 1 << 16
    calls: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    dialect: Dialect = DIALECTS["cuda"]
    _failures: dict[str, tuple[int, int]] = field(default_factory=dict)
    _ranges: dict[int, int] = field(default_factory=dict)
    _memory: dict[int, _Memory] = field(default_factory=dict)
    _next_handle: int = 1

    def __getattr__(self, name: str) -> Any:  # called for what is no attribute: C functions
        if name == self.dialect.error_name:
            kind = CFUNCTYPE(c_int, c_int, POINTER(c_char_p))
            return kind(self._error_name)
        arguments = CALLS.get(name.removeprefix(self.dialect.prefix))
        if arguments is None or not name.startswith(self.dialect.prefix):
            raise AttributeError(name)
        call = self._counted(name.removeprefix(self.dialect.prefix))
        return CFUNCTYPE(c_int, *arguments)(call)

    def fail(self, name: str, *, after: int = 0, number: int = NOT_SUPPORTED) -> None:
        """Have a function fail once, after so many good calls from now on."""
        self._failures[name] = (after, number)

    @property
    def used_bytes(self) -> int:
        """Memory taken."""
        return sum(each.nbytes for each in self._memory.values())

    @property
    def reserved_bytes(self) -> int:
        """Addresses taken."""
        return sum(self._ranges.values())

    def _counted(self, name: str) -> Callable[..., int]:
        work: Callable[..., int] = _WORK[name]

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            left, number = self._failures.get(name, (-1, 0))
            if left == 0:
                del self._failures[name]
                return number
            if left > 0:
                self._failures[name] = (left - 1, number)
            result = work(self, *arguments)
            if result == _INVALID:
                self.wrong.append(name)
            return result

        return call

    def _error_name(self, number: int, text: Any) -> int:
        # The text must outlive the call.
        text[0] = _NAMES.get(number, b"CUDA_ERROR_INVALID_VALUE")
        return 0

    def _get_granularity(self, size: Any, kind: Any, flags: int) -> int:
        del flags
        size[0] = self.granularity
        return 0 if kind[0].type == 1 and kind[0].location.type == 1 else _INVALID

    def _reserve(self, address: Any, nbytes: int, *rest: int) -> int:
        if nbytes % self.granularity or any(rest):
            return _INVALID
        address[0] = _map(None, nbytes, _NO_ACCESS)
        self._ranges[address[0]] = nbytes
        return 0

    def _free(self, address: int, nbytes: int) -> int:
        taken = any(
            each.address is not None and address <= each.address < address + nbytes
            for each in self._memory.values()
        )
        if taken or self._ranges.get(address) != nbytes:
            return _INVALID
        del self._ranges[address]
        _LIBC.munmap(address, nbytes)
        return 0

    def _create(self, handle: Any, nbytes: int, kind: Any, flags: int) -> int:
        if nbytes == 0 or nbytes % self.granularity or flags or kind[0].type != 1:
            return _INVALID
        if self.used_bytes + nbytes > self.capacity_bytes:
            return OUT_OF_MEMORY
        file = os.memfd_create("device")
        os.write(file, _RUBBISH * nbytes)
        handle[0] = self._next_handle
        self._memory[self._next_handle] = _Memory(file, nbytes)
        self._next_handle += 1
        return 0

    def _release(self, handle: int) -> int:
        memory = self._memory.get(handle)
        if memory is None or memory.address is not None:
            return _INVALID
        os.close(memory.file)
        del self._memory[handle]
        return 0

    def _map(self, address: int, nbytes: int, offset: int, handle: int, flags: int) -> int:
        memory = self._memory.get(handle)
        inside = any(
            start <= address and address + nbytes <= start + size
            for start, size in self._ranges.items()
        )
        taken = any(
            each.address is not None
            and each.address < address + nbytes
            and address < each.address + each.nbytes
            for each in self._memory.values()
        )
        fits = memory is not None and memory.address is None and memory.nbytes == nbytes
        if memory is None or not fits or not inside or taken or offset or flags:
            return _INVALID
        memory.address = address
        return 0

    def _set_access(self, address: int, nbytes: int, access: Any, count: int) -> int:
        memory = self._at(address, nbytes)
        if memory is None or count != 1 or access[0].flags != 3:
            return _INVALID
        _map(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, memory.file)
        return 0

    def _unmap(self, address: int, nbytes: int) -> int:
        memory = self._at(address, nbytes)
        if memory is None:
            return _INVALID
        _map(address, nbytes, _NO_ACCESS)
        memory.address = None
        return 0

    def _at(self, address: int, nbytes: int) -> _Memory | None:
        for each in self._memory.values():
            if each.address == address and each.nbytes == nbytes:
                return each
        return None


_WORK: dict[str, Callable[..., int]] = {
    "MemGetAllocationGranularity": FakeMemoryDriver._get_granularity,
    "MemAddressReserve": FakeMemoryDriver._reserve,
    "MemAddressFree": FakeMemoryDriver._free,
    "MemCreate": FakeMemoryDriver._create,
    "MemRelease": FakeMemoryDriver._release,
    "MemMap": FakeMemoryDriver._map,
    "MemUnmap": FakeMemoryDriver._unmap,
    "MemSetAccess": FakeMemoryDriver._set_access,
}

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = c_void_p
_LIBC.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_uint64)
_LIBC.munmap.argtypes = (c_void_p, c_size_t)


def _map(address: int | None, nbytes: int, access: int, file: int | None = None) -> int:
    """Map a file, or nothing, at an address or anywhere."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    if file is not None:
        flags = mmap.MAP_SHARED
    if address is not None:
        flags |= _MAP_FIXED
    found = _LIBC.mmap(address, nbytes, access, flags, -1 if file is None else file, 0)
    if found in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "no addresses")
    return int(found)


def can_be_read(address: int) -> bool:
    """Whether there is memory at an address: the system, unlike us, survives the attempt."""
    reader, writer = os.pipe()
    try:
        return bool(_LIBC.write(writer, c_void_p(address), c_size_t(1)) == 1)
    finally:
        os.close(reader)
        os.close(writer)


class _HostBytes:
    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }
        self.owner = owner


def host_bytes_at(address: int, nbytes: int, owner: object, device: object) -> torch.Tensor:
    """`luce.engine.device_arena.bytes_at` of this memory."""
    del device
    return torch.from_numpy(np.asarray(_HostBytes(address, nbytes, owner)))
