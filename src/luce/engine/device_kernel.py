"""Kernels in a device's own language: what they must know of it, and how they are launched.

PyTorch launches kernels it compiled without attributes; `EarlyKernel` asks the driver itself,
whose structures these are (`cuda.h`, `cuLaunchKernelEx`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_NUM_REGISTERS = 4
_PREFERRED_SHARED_MEMORY_CARVEOUT = 9
_INT_END = 1 << 31


class DeviceKernel(Protocol):
    """A compiled kernel in a device's own language."""

    def __call__(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[object]
    ) -> None:
        """Launch it in the current stream.

        Tensors are given as pointers, numbers as int, tensor maps as they are.
        """


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """What a kernel must know about a GPU.

    Attributes:
        processors: multiprocessors.
        shared_bytes: most shared memory of a block of threads.
        processor_bytes: shared memory of a multiprocessor, 1 KiB of which each block takes away.
    """

    processors: int
    shared_bytes: int
    processor_bytes: int

    def shared_bytes_of(self, blocks: int) -> int:
        """What each of so many blocks of threads may have, side by side."""
        return min(self.shared_bytes, self.processor_bytes // blocks - 1024)


def are_processors_shared() -> bool:
    """Whether processes may run on a GPU's multiprocessors side by side, by CUDA's MPS.

    Then blocks of threads that wait for each other may never all run at once.
    """
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108
    return Path(folder, "control").exists()


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """How a kernel is launched.

    Attributes:
        shared_bytes: of shared memory for each block of threads.
        is_early: while the kernel before it still runs; it waits for that one itself.
        is_specific: it has instructions that only this very generation of processors knows.
        shared_percent: of what a multiprocessor has for shared memory and first cache, for shared
            memory; None: as the kernel before had it. Only of kernels that start early.
    """

    shared_bytes: int = 0
    is_early: bool = False
    is_specific: bool = False
    shared_percent: int | None = None


PLAIN_LAUNCH = KernelLaunch()


class LaunchAttribute(ctypes.Structure):
    """`CUlaunchAttribute` with a number as its value."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class EarlyKernel:
    """A `device.DeviceKernel`.

    Args:
        driver: CUDA's library.
        function: the kernel's handle.
        stream: tells the handle of the current stream.
        shared_bytes: of shared memory for each block of threads.
        shared_percent: see `KernelLaunch`.

    Raises:
        RuntimeError: the driver does not take the share.
    """

    def __init__(
        self,
        driver: ctypes.CDLL,
        function: ctypes.c_void_p,
        stream: Callable[[], int],
        shared_bytes: int,
        shared_percent: int | None = None,
    ) -> None:
        self._driver = driver
        self._function = function
        self._stream = stream
        self._shared_bytes = shared_bytes
        self._attribute = LaunchAttribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
        if shared_percent is None:
            return
        asked = _PREFERRED_SHARED_MEMORY_CARVEOUT, shared_percent
        status = driver.cuFuncSetAttribute(function, *map(ctypes.c_int, asked))
        if status:
            raise RuntimeError(f"shared memory has no share of its own: CUDA error {status}")

    def registers(self) -> int:
        """Of each thread, as it starts.

        Raises:
            RuntimeError: the driver does not tell.
        """
        found = ctypes.c_int()
        asked = ctypes.c_int(_NUM_REGISTERS)
        status = self._driver.cuFuncGetAttribute(ctypes.byref(found), asked, self._function)
        if status:
            raise RuntimeError(f"the registers of a kernel are not known: CUDA error {status}")
        return found.value

    def __call__(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[object]
    ) -> None:
        """Launch it in the current stream.

        Tensors are given as pointers, numbers as int, tensor maps as they are.

        Raises:
            RuntimeError: the driver does not take it, or a number is too large.
        """
        values = [_argument(arg) for arg in args]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        config = LaunchConfig(
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            self._shared_bytes,
            self._stream(),
            ctypes.pointer(self._attribute),
            1,
        )
        status = self._driver.cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None)
        if status:
            raise RuntimeError(f"a kernel could not be launched: CUDA error {status}")


def _argument(arg: object) -> ctypes.c_void_p | ctypes.c_int | ctypes.Array[ctypes.c_uint64]:
    if isinstance(arg, torch.Tensor):
        return ctypes.c_void_p(arg.data_ptr())
    if isinstance(arg, ctypes.Array):
        return arg
    assert isinstance(arg, int)
    # `c_int` would cut it, and the kernel read anywhere.
    if not -_INT_END <= arg < _INT_END:
        raise RuntimeError(f"a kernel takes no number as large as {arg}")
    return ctypes.c_int(arg)
