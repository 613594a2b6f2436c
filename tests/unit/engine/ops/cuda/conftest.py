"""Kernels of CUDA C++ on the host, launched by the code that launches them on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from luce.engine.device_kernel import KernelLimits
from luce.engine.ops.cuda import quant_split, quant_whole
from support.cuda_host import COMPILER, SPLIT_HEADER, HostDevice

PROCESSORS = 3
"""So few that blocks of threads begin and end within row blocks."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(SPLIT_HEADER)
    limits = KernelLimits(PROCESSORS, 227 << 10, 228 << 10)

    def forget() -> None:
        for module in (quant_split, quant_whole):
            module._compiled.cache_clear()
        quant_split._cut.cache_clear()
        quant_whole.arrivals.cache_clear()

    for module in (quant_split, quant_whole):
        monkeypatch.setattr(module, "compiled_kernel", device.compiled_kernel)
    monkeypatch.setattr(quant_whole, "kernel_limits", lambda _: limits)
    monkeypatch.setattr(quant_split, "kernel_limits", lambda _: replace(limits, processors=6))
    forget()
    yield device
    assert not quant_whole.arrivals(torch.device("cpu")).any(), "counters are left as they were"
    forget()
