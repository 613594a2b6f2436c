"""Kernels of CUDA C++ on the host, launched by the code that launches them on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from luce.engine.device_kernel import KernelLimits
from luce.engine.ops.cuda import quant_mma, quant_stream
from support.cuda_host import COMPILER, HostDevice

PROCESSORS = 3
"""So few that blocks of threads begin and end within row blocks."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice()
    limits = KernelLimits(PROCESSORS, 227 << 10, 228 << 10)

    def forget() -> None:
        for module in (quant_mma, quant_stream):
            module._compiled.cache_clear()
        quant_stream._arrived.cache_clear()

    for module in (quant_mma, quant_stream):
        monkeypatch.setattr(module, "compiled_kernel", device.compiled_kernel)
    monkeypatch.setattr(quant_stream, "kernel_limits", lambda _: limits)
    forget()
    yield device
    assert not quant_stream._arrived(torch.device("cpu")).any(), "counters are left as they were"
    forget()
