"""Quantised matrices, vectors, and what is wrong about a product, for kernels on the host."""

from __future__ import annotations

from collections.abc import Callable

import torch

from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.quant_planes import QuantPlanes, repack
from luce.testing.quant_blocks import random_blocks
from support.cuda_host import EmulationError, HostDevice


def made(type_name: str, rows: int, columns: int) -> QuantPlanes:
    generator = torch.Generator().manual_seed(rows)
    return repack(type_name, random_blocks(type_name, rows, columns, generator), rows, columns)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def exact(planes: QuantPlanes, x: torch.Tensor) -> torch.Tensor:
    """x W^T in float64."""
    return x.double() @ decode(planes).double().T


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of the norm."""
    return ((found.double() - expected).norm() / expected.norm()).item()


def errors_with(
    host: HostDevice,
    correct: str,
    wrong: str,
    found: Callable[[], torch.Tensor],
    expected: torch.Tensor,
) -> list[float]:
    """Of a kernel whose text says something wrong, threads in both orders; NaN: the host saw it."""

    def broken(text: str) -> str:
        assert text.count(correct) == 1
        return text.replace(correct, wrong)

    host.edit = broken
    errors = []
    for host.backwards in (False, True):
        try:
            errors.append(error(found(), expected))
        except EmulationError:
            errors.append(float("nan"))
    return errors
