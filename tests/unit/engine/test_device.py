"""Device names, memory, threads, read-back."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from unittest.mock import MagicMock

import pytest
import torch

from luce.engine import device as device_module
from luce.engine.device import (
    Device,
    begin_readback,
    capture,
    compile_kernel,
    dtype_name,
    free_bytes,
    is_out_of_memory,
    kernel_limits,
    open_device,
    release_all,
    resolve_dtype,
    use_threads,
)
from luce.engine.device_kernel import KernelLaunch, KernelLimits
from luce.errors import PlacementError, UsageError


@pytest.mark.parametrize("text", ["cpu", "cpu:0"])
def test_cpu(text: str) -> None:
    device = open_device(text)
    assert device.is_cpu
    assert device.name == "cpu:0"
    assert device.torch == torch.device("cpu")


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:x", "cpu:-1", "CPU", "cuda:0:1", "mps"])
def test_unknown_kind(text: str) -> None:
    with pytest.raises(UsageError, match="unknown device"):
        open_device(text)


def test_cpus_with_numbers_are_parts_of_one_machine() -> None:
    device = open_device("cpu:3")
    assert (device.name, device.torch) == ("cpu:3", torch.device("cpu"))


def build(monkeypatch: pytest.MonkeyPatch, cuda: str | None, hip: str | None, count: int) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)


def test_gpu_of_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, None, None, 0)
    with pytest.raises(PlacementError, match=r"cuda:0.*is built for cpu"):
        open_device("cuda:0")
    build(monkeypatch, None, "6.3", 1)
    with pytest.raises(PlacementError, match="is built for hip"):
        open_device("cuda")


def test_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, "12.8", None, 2)
    with pytest.raises(
        PlacementError, match="no such device: cuda:2; devices found: cuda:0, cuda:1"
    ):
        open_device("cuda:2")
    build(monkeypatch, "12.8", None, 0)
    with pytest.raises(PlacementError, match="devices found: none"):
        open_device("cuda:0")


def test_a_gpu_that_is_opened_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, "12.8", None, 3)
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    open_device("cpu")
    assert current == []
    with pytest.raises(PlacementError):
        open_device("cuda:3")
    assert current == []
    open_device("cuda:1")
    assert current == [1]


def test_hip_devices_are_cuda_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, None, "6.3", 2)
    device = open_device("hip:1")
    assert device.name == "hip:1"
    assert device.torch == torch.device("cuda", 1)
    assert not device.is_cpu


def test_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = open_device("cpu")
    build(monkeypatch, "12.8", None, 1)
    assert resolve_dtype("auto", cpu) == torch.float32
    assert resolve_dtype("auto", open_device("cuda:0")) == torch.bfloat16
    assert resolve_dtype("float16", cpu) == torch.float16
    assert dtype_name(torch.bfloat16) == "bfloat16"
    with pytest.raises(UsageError, match="unknown dtype 'int8'"):
        resolve_dtype("int8", cpu)


def test_threads() -> None:
    before = torch.get_num_threads()
    try:
        assert use_threads(3) == torch.get_num_threads() == 3
        assert use_threads(None) == torch.get_num_threads() == len(os.sched_getaffinity(0))
    finally:
        torch.set_num_threads(before)


def test_free_memory_of_this_machine() -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < free_bytes(open_device("cpu")) <= physical


def test_out_of_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("x"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))


@pytest.mark.parametrize("has_public_name", [True, False])
def test_all_memory_goes_back_on_any_pytorch(
    monkeypatch: pytest.MonkeyPatch, has_public_name: bool
) -> None:
    called: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: called.append("device"))
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: called.append("older"), raising=False)
    if has_public_name:
        newer = partial(called.append, "newer")
        monkeypatch.setattr(torch.accelerator, "empty_host_cache", newer, raising=False)
    else:
        monkeypatch.delattr(torch.accelerator, "empty_host_cache", raising=False)
    release_all(Device("cuda:0", torch.device("cuda", 0)))
    assert called == ["device", "newer" if has_public_name else "older"]


def test_all_captures_are_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream costs a workspace for good, and PyTorch has 32 of them."""
    used: list[MagicMock] = []

    def graph(_: object, *, stream: MagicMock, **__: object) -> nullcontext[None]:
        used.append(stream)
        return nullcontext()

    monkeypatch.setattr("luce.engine.device.torch.cuda", cuda := MagicMock())
    cuda.current_device.return_value = 6
    cuda.graph.side_effect = graph
    results = [capture(partial(torch.tensor, value), None)[1] for value in (1, 2, 3)]
    assert results == [1, 2, 3]
    cuda.Stream.assert_called_once_with(6)
    assert used == [cuda.Stream.return_value] * 3


def test_readback_keeps_the_values_of_its_step() -> None:
    values = torch.tensor([3, -1, 7])
    read = begin_readback(values)
    values.zero_()
    assert read() == [3, -1, 7]


class _Kernel:
    """What PyTorch's compiler makes, noting how it is launched."""

    def __init__(self) -> None:
        self.configured = 0
        self.launched: list[tuple[object, ...]] = []

    def set_shared_memory_config(self, nbytes: int) -> None:
        self.configured = nbytes

    def __call__(self, grid: object, block: object, args: object, shared_mem: int = 0) -> None:
        self.launched.append((grid, block, args, shared_mem))


@pytest.mark.parametrize("shared_bytes", [0, 100 << 10])
def test_kernels_get_the_shared_memory_they_want(
    monkeypatch: pytest.MonkeyPatch, shared_bytes: int
) -> None:
    made = _Kernel()
    targets: list[str | None] = []

    def compiled(source: str, name: str, compute_capability: str | None) -> _Kernel:
        targets.append(compute_capability)
        return made

    monkeypatch.setattr(torch.cuda, "_compile_kernel", compiled)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    device_module._built_kernel.cache_clear()
    compile_kernel("text", "name", KernelLaunch(is_specific=True))
    kernel = compile_kernel("text", "name", KernelLaunch(shared_bytes))
    other = compile_kernel("text", "name", KernelLaunch(200))
    device_module._built_kernel.cache_clear()
    assert targets == ["90a", None]
    kernel((2, 1, 1), (64, 1, 1), [7])
    other((2, 1, 1), (64, 1, 1), [8])
    assert made.configured == max(shared_bytes, 200)
    assert made.launched == [
        ((2, 1, 1), (64, 1, 1), [7], shared_bytes),
        ((2, 1, 1), (64, 1, 1), [8], 200),
    ]


def test_blocks_of_threads_share_a_multiprocessors_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        multi_processor_count = 132
        shared_memory_per_block = 48 << 10
        shared_memory_per_block_optin = 227 << 10
        shared_memory_per_multiprocessor = 228 << 10

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    kernel_limits.cache_clear()
    limits = kernel_limits(torch.device("cuda", 5))
    kernel_limits.cache_clear()
    assert limits == KernelLimits(132, 227 << 10, 228 << 10)
    assert limits.shared_bytes_of(1) == 227 << 10
    assert limits.shared_bytes_of(2) == 113 << 10
