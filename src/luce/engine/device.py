"""Devices: names, existence, free memory, threads, read-back. Only this file says torch.cuda."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.device_kernel import (
    PLAIN_LAUNCH,
    DeviceKernel,
    EarlyKernel,
    KernelLaunch,
    KernelLimits,
)
from luce.errors import PlacementError, UsageError
from luce.sizing.element_types import resolve_dtype_name
from luce.sizing.host_memory import available_bytes, own_bytes

_NAME = re.compile(r"(cpu|cuda|hip)(?::(\d{1,3}))?")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Device:
    """A device that exists.

    Attributes:
        name: "cpu:0", "cuda:0" or "hip:0", as people see it.
        torch: PyTorch's handle; a ROCm device is "cuda" there.
    """

    name: str
    torch: torch.device

    @property
    def is_cpu(self) -> bool:
        return self.torch.type == "cpu"


def open_device(text: str) -> Device:
    """Find the device a person named; on a GPU this thread works there from now on.

    Raises:
        UsageError: the text names no kind of device we know.
        PlacementError: this machine, or this build of PyTorch, does not have it.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise UsageError(f"unknown device {text!r}; use cpu, cuda:N or hip:N")
    kind, index = match[1], int(match[2] or 0)
    if kind == "cpu":
        # Several cpu:N name parts of one machine, so that models can be placed apart on it.
        return Device(f"cpu:{index}", torch.device("cpu"))
    return _open_gpu(kind, index)


def _open_gpu(kind: str, index: int) -> Device:
    built_for = "hip" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    if built_for != kind:
        raise PlacementError(
            f"no such device: {kind}:{index}; the installed PyTorch {torch.__version__} is built "
            f"for {built_for}"
        )
    count = torch.cuda.device_count()
    if index >= count:
        found = ", ".join(f"{kind}:{number}" for number in range(count)) or "none"
        raise PlacementError(f"no such device: {kind}:{index}; devices found: {found}")
    # Kernels, streams and graphs are of the current device, which is the first one else.
    torch.cuda.set_device(index)
    return Device(f"{kind}:{index}", torch.device("cuda", index))


def resolve_dtype(text: str, device: Device) -> torch.dtype:
    """The type weights are held and computed in.

    Raises:
        UsageError: the name is unknown.
    """
    return _DTYPES[resolve_dtype_name(text, on_cpu=device.is_cpu)]


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def use_threads(threads: int | None) -> int:
    """Set how many CPU threads PyTorch uses in this process; returns the number."""
    count = threads if threads is not None else len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    return count


def free_bytes(device: Device) -> int:
    """Memory a new model may take, in bytes."""
    if not device.is_cpu:
        return int(torch.cuda.mem_get_info(device.torch)[0])
    return available_bytes()


def is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    """Whether PyTorch or numpy failed to allocate, on any device."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    # PyTorch's CPU allocator has no class of its own for it.
    return "can't allocate memory" in str(error)


def begin_readback(values: torch.Tensor) -> Callable[[], list[int]]:
    """Start copying a small integer tensor to the host.

    Returns:
        A function that waits for the copy and returns the values. On a CPU the values are taken
        at once, because the tensor's memory may be reused by the next step.
    """
    if values.device.type == "cpu":
        taken: list[int] = values.tolist()
        return lambda: taken
    wait = begin_copy(values)
    return lambda: [int(value) for value in wait().tolist()]


def begin_copy(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Start copying a tensor to the host.

    Returns:
        A function that waits for the copy, not for what the device was told later, and returns
        it. On a CPU it is the tensor itself.
    """
    if values.device.type == "cpu":
        return lambda: values
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    pinned.copy_(values, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(values.device))

    def wait() -> torch.Tensor:
        done.synchronize()
        return pinned

    return wait


def upload(values: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """A small array on the device, without waiting: the copy stands in the stream's order.

    On a CPU the tensor shares the array's memory.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cpu":
        return tensor
    # PyTorch's pinned memory is used again only after the copies from it are done.
    return tensor.pin_memory().to(device, non_blocking=True)


def upload_into(target: torch.Tensor, values: npt.NDArray[np.generic]) -> None:
    """Put a small array into a tensor of a device, as `upload` does, without one in between."""
    tensor = torch.from_numpy(values)
    if target.device.type != "cpu":
        tensor = tensor.pin_memory()
    target.copy_(tensor, non_blocking=True)


class UploadLane:
    """Pinned memory and a stream of one thread that fills tensors of a device.

    On a CPU it copies and nothing else.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = torch.empty(0, dtype=torch.uint8)
        self._stream: torch.cuda.Stream | None = None
        if device.type != "cpu":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def put(self, values: torch.Tensor, place: Callable[[torch.Tensor], None]) -> None:
        """Send contiguous `values` as they are and have `place` put them where they belong.

        Returns when that is done. Types are converted by `place`, on the device, where that costs
        nothing.
        """
        if self._stream is None:
            place(values)
            return
        if self._pinned.numel() < values.nbytes:
            self._pinned = torch.empty(values.nbytes, dtype=torch.uint8, pin_memory=True)
        staged = self._pinned[: values.nbytes]
        # By numpy: PyTorch would use all cores' threads for it, in each of the threads that do so.
        np.copyto(staged.numpy(), values.flatten().view(torch.uint8).numpy())
        with torch.cuda.stream(self._stream):
            sent = staged.to(self._device, non_blocking=True)
            place(sent.view(values.dtype).view(values.shape))
        self._stream.synchronize()


def peak_bytes(device: Device, work: Callable[[], object]) -> int:
    """Most memory of PyTorch's allocator that `work` takes on a GPU beyond what is taken now."""
    torch.cuda.synchronize(device.torch)
    before = torch.cuda.memory_allocated(device.torch)
    torch.cuda.reset_peak_memory_stats(device.torch)
    work()
    torch.cuda.synchronize(device.torch)
    return torch.cuda.max_memory_allocated(device.torch) - before


def taken_peak_bytes(device: Device) -> int:
    """Most memory taken on a GPU so far, what is kept for reuse included; on a CPU, what this
    process has of its own now: pages of files go when others want the memory.
    """
    if device.is_cpu:
        return own_bytes()
    return int(torch.cuda.max_memory_reserved(device.torch))


def has_dependent_launch() -> bool:
    """Whether kernels may be launched while the one before them still runs (Hopper and later)."""
    if torch.version.hip or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability()[0] >= 9


def has_fp8_conversion() -> bool:
    """Whether the processor converts e4m3 numbers (compute capability 8.9 and later)."""
    if torch.version.hip or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (8, 9)


def kernel_refusal(*, is_hopper: bool = False) -> str | None:
    """Why `compile_kernel` cannot serve kernels that start early (and are Hopper's), or None."""
    if torch.version.hip or not torch.cuda.is_available():
        return "made for NVIDIA GPUs"
    if not has_dependent_launch():
        return "made for compute capability 9.0 and later"
    if is_hopper and torch.cuda.get_device_capability() != (9, 0):
        return "made for compute capability 9.0"
    if not hasattr(torch.cuda, "_compile_kernel"):
        return "this PyTorch cannot compile CUDA C++"
    return None


@functools.cache
def kernel_limits(device: torch.device) -> KernelLimits:
    """Those of a GPU."""
    found = torch.cuda.get_device_properties(device)
    return KernelLimits(
        found.multi_processor_count,
        int(getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)),
        found.shared_memory_per_multiprocessor,
    )


@functools.cache
def _built_kernel(source: str, name: str, target: str | None, device: int) -> tuple[Any, list[int]]:
    """Of the current device, and the most shared memory that a launch of it may have so far."""
    return torch.cuda._compile_kernel(source, name, compute_capability=target), [0]


def compile_kernel(source: str, name: str, launch: KernelLaunch = PLAIN_LAUNCH) -> DeviceKernel:
    """Compile an `extern "C"` kernel of CUDA C++ for the current device, at run time.

    Uses PyTorch's own compiler, a private interface: `kernel_refusal` tells if it is there.

    Args:
        source: its text.
        name: of the kernel.
        launch: how it is launched.

    Raises:
        RuntimeError: the compiler or the device does not take it.
        AttributeError: this PyTorch cannot launch it so.
        OSError: there is no compiler.
    """
    target = "{}{}a".format(*torch.cuda.get_device_capability()) if launch.is_specific else None
    kernel, most = _built_kernel(source, name, target, torch.cuda.current_device())
    if launch.shared_bytes > most[0]:
        most[0] = launch.shared_bytes
        kernel.set_shared_memory_config(most[0])
    if launch.is_early:
        driver = torch.cuda._utils._get_gpu_runtime_library()
        stream = lambda: torch.cuda.current_stream().cuda_stream  # noqa: E731
        return EarlyKernel(driver, kernel.func, stream, launch.shared_bytes, launch.shared_percent)
    return functools.partial(kernel, shared_mem=launch.shared_bytes)


class DeviceGraph(Protocol):
    """A captured run of kernels that reads and writes the same memory each time."""

    def replay(self) -> None:
        """Run it, in the current stream's order."""


def graph_pool() -> object:
    """Memory that graphs captured one after another may share, if they never run side by side."""
    return torch.cuda.graph_pool_handle()


def capture(work: Callable[[], torch.Tensor], pool: object) -> tuple[DeviceGraph, torch.Tensor]:
    """Run `work` once, then capture it.

    Returns:
        The graph, and the tensor in which each replay leaves its result.
    """
    stream = _capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(
        graph,
        pool=pool,  # type: ignore[arg-type]
        stream=stream,
        capture_error_mode="thread_local",
    ):
        result = work()
    return graph, result


@functools.cache
def _capture_stream(index: int) -> torch.cuda.Stream:
    """One for all captures: PyTorch keeps a workspace of 32 MiB for each that cuBLAS has used."""
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


def release_cached(device: Device) -> None:
    """Give memory PyTorch keeps for reuse back to the device."""
    if not device.is_cpu:
        torch.cuda.empty_cache()


def release_all(device: Device) -> None:
    """Give back what nobody uses any more: on the device, pinned, and in this process's heap.

    Takes a tenth of a second, for the collection of cycles.
    """
    gc.collect()
    release_cached(device)
    if not device.is_cpu:
        # Its name before PyTorch 2.12 is not public.
        empty = getattr(torch.accelerator, "empty_host_cache", None) or torch._C._host_emptyCache
        empty()
    # The C library keeps freed memory for itself, and its name may not be there.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def held_bytes(device: Device) -> int:
    """Memory of a GPU that this process's allocator holds."""
    return int(torch.cuda.memory_reserved(device.torch))


def host_buffer(nbytes: int, device: Device) -> torch.Tensor:
    """Host memory, u8 [nbytes], that a device copies from and to at full speed."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=not device.is_cpu)


def synchronize(device: Device) -> None:
    """Wait until a device has done all it was told."""
    if not device.is_cpu:
        torch.cuda.synchronize(device.torch)


class SideStream:
    """A place in which a device works beside what else it does; a CPU does it at once."""

    def __init__(self, device: Device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if not device.is_cpu:
            self._stream = torch.cuda.Stream(device.torch)  # type: ignore[no-untyped-call]

    @contextmanager
    def launching(self) -> Iterator[None]:
        """What is launched inside goes there, and follows what was launched before."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Until all of it is done."""
        if self._stream is not None:
            self._stream.synchronize()
