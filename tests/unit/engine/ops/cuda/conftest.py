"""Kernels of CUDA C++ on the host, launched by the code that launches them on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

from luce.engine.device_kernel import PLAIN_LAUNCH, DeviceKernel, KernelLaunch, KernelLimits
from luce.engine.ops.cuda import quant_held, quant_split, quant_stage, quant_whole
from support.cuda_host import (
    BULK_HEADER,
    COMPILER,
    HELD_HEADER,
    HOPPER_HEADER,
    RING_HEADER,
    HostDevice,
)

PROCESSORS = 3
"""So few that blocks of threads begin and end within row blocks."""


def bulk_kernel(
    device: HostDevice,
    header: Path,
    name: str,
    files: Sequence[str],
    constants: Mapping[str, int],
    launch: KernelLaunch,
) -> DeviceKernel:
    """A kernel that asks for the primitives of a header with bulk copies."""
    own = [each for each in files if each not in quant_split.PRIMITIVES]
    return device.compiled_kernel(name, own, constants, launch, header)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(RING_HEADER)
    limits = KernelLimits(PROCESSORS, 227 << 10, 228 << 10)

    def forget() -> None:
        for module in (quant_held, quant_split, quant_stage, quant_whole):
            module._compiled.cache_clear()
        quant_held._cut.cache_clear()
        quant_split._cut.cache_clear()
        quant_stage._norm_serves.cache_clear()
        quant_whole.arrivals.cache_clear()

    for module in (quant_stage, quant_whole):
        monkeypatch.setattr(module, "compiled_kernel", device.compiled_kernel)
    for module, header in ((quant_held, HELD_HEADER), (quant_split, BULK_HEADER)):
        monkeypatch.setattr(module, "compiled_kernel", partial(bulk_kernel, device, header))
        monkeypatch.setattr(module, "kernel_limits", lambda _: replace(limits, processors=6))
    monkeypatch.setattr(quant_whole, "kernel_limits", lambda _: limits)
    forget()
    yield device
    assert not quant_whole.arrivals(torch.device("cpu")).any(), "counters are left as they were"
    forget()


HopperHost = Callable[..., HostDevice]
"""Takes a module, what makes its descriptions, how many of its last files are not primitives, and
the names of its caches of kernels."""


@pytest.fixture
def hopper_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HopperHost]:
    """Has a module's kernels that copy by descriptions run on the host."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(HOPPER_HEADER)
    taken: list[Callable[[], None]] = []

    def take(
        module: ModuleType,
        describe: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor],
        own_files: int = 1,
        caches: Sequence[str] = ("_compiled",),
    ) -> HostDevice:
        def compiled(
            name: str,
            files: Sequence[str],
            constants: Mapping[str, int],
            launch: KernelLaunch = PLAIN_LAUNCH,
        ) -> DeviceKernel:
            return device.compiled_kernel(name, files[-own_files:], constants, launch)

        monkeypatch.setattr(module, "compiled_kernel", compiled)
        monkeypatch.setattr(module, "tensor_map", describe)
        for name in caches:
            taken.append(getattr(module, name).cache_clear)
            taken[-1]()
        return device

    yield take
    for forget in taken:
        forget()
