"""Devices: names, existence, free memory, threads, read-back. Only this file says torch.cuda."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from luce.errors import PlacementError, UsageError

_NAME = re.compile(r"(cpu|cuda|hip)(?::(\d{1,3}))?")
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class Device:
    """A device that exists.

    Attributes:
        name: "cpu", "cuda:0" or "hip:0", as people see it.
        torch: PyTorch's handle; a ROCm device is "cuda" there.
    """

    name: str
    torch: torch.device

    @property
    def is_cpu(self) -> bool:
        return self.torch.type == "cpu"


def open_device(text: str) -> Device:
    """Find the device a person named.

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
        return Device(f"cpu:{index}" if index else "cpu", torch.device("cpu"))
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
    return Device(f"{kind}:{index}", torch.device("cuda", index))


def resolve_dtype(text: str, device: Device) -> torch.dtype:
    """The type weights are held and computed in.

    Raises:
        UsageError: the name is unknown.
    """
    if text == "auto":
        return torch.float32 if device.is_cpu else torch.bfloat16
    if text not in _DTYPES:
        raise UsageError(f"unknown dtype {text!r}; use auto, {', '.join(_DTYPES)}")
    return _DTYPES[text]


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
    limits = [_meminfo_available(Path("/proc/meminfo")), _cgroup_available(Path("/sys/fs/cgroup"))]
    return min(limit for limit in limits if limit is not None)


def _meminfo_available(path: Path) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise PlacementError(f"{path} has no MemAvailable line")


def _cgroup_available(folder: Path) -> int | None:
    """What a container's limit (cgroup v2) leaves, or None where there is no limit.

    Pages of files nobody used lately count as used there, but go as soon as memory is wanted.
    """
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = (folder / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return None
    if limit == "max":
        return None
    held = max(0, int(used) - _inactive_file(folder / "memory.stat"))
    return max(0, int(limit) - held)


def _inactive_file(path: Path) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


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
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    pinned.copy_(values, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(values.device))

    def wait() -> list[int]:
        done.synchronize()
        return [int(value) for value in pinned.tolist()]

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

    def put(self, values: torch.Tensor, target: torch.Tensor) -> None:
        """Copy `values` into `target`, in its type; returns when that is done."""
        if self._stream is None:
            target.copy_(values)
            return
        if self._pinned.numel() < values.nbytes:
            self._pinned = torch.empty(values.nbytes, dtype=torch.uint8, pin_memory=True)
        staged = self._pinned[: values.nbytes].view(values.dtype).view(values.shape)
        staged.copy_(values)
        with torch.cuda.stream(self._stream):
            # Sent as it is and converted there, where that costs nothing.
            target.copy_(staged.to(self._device, non_blocking=True))
        self._stream.synchronize()


def peak_bytes(device: Device, work: Callable[[], object]) -> int:
    """Most memory of PyTorch's allocator that `work` takes on a GPU beyond what is taken now."""
    torch.cuda.synchronize(device.torch)
    before = torch.cuda.memory_allocated(device.torch)
    torch.cuda.reset_peak_memory_stats(device.torch)
    work()
    torch.cuda.synchronize(device.torch)
    return torch.cuda.max_memory_allocated(device.torch) - before


def has_dependent_launch() -> bool:
    """Whether kernels may be launched while the one before them still runs (Hopper and later)."""
    if torch.version.hip or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability()[0] >= 9


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
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # type: ignore[arg-type]
        result = work()
    return graph, result


def release_cached(device: Device) -> None:
    """Give memory PyTorch keeps for reuse back to the device."""
    if not device.is_cpu:
        torch.cuda.empty_cache()
