"""Planes of random codes and moderate scales, to try a kernel on before weights are there."""

from __future__ import annotations

import torch

from luce.engine.quant_planes import QuantPlanes, empty_planes
from luce.loaders.quant_formats import QuantFormat, ScaleKind

_ONE_AS_POWER = 127


def random_planes(form: QuantFormat, rows: int, columns: int, device: torch.device) -> QuantPlanes:
    """The same numbers whenever asked for the same."""
    generator = torch.Generator().manual_seed(rows + columns)
    planes = empty_planes(form.name, rows, columns, device)
    planes.codes.copy_(_random_bits(planes.codes, generator))
    if planes.high is not None:
        planes.high.copy_(_random_bits(planes.high, generator))
    if form.scale is ScaleKind.POWER:
        # All the powers there are would overflow sums.
        planes.scales.fill_(_ONE_AS_POWER)
    elif form.scale in (ScaleKind.HALF, ScaleKind.HALF_OFFSET):
        planes.scales.copy_(_random_halves(planes.scales, generator))
    else:
        planes.scales.copy_(_random_bits(planes.scales, generator))
        if form.scale is ScaleKind.BYTE_OFFSET:
            # Six bits each: kernels count on it.
            planes.scales.bitwise_and_(0x3F3F)
    if planes.blocks is not None:
        planes.blocks.copy_(_random_halves(planes.blocks, generator))
    return planes


def _random_bits(plane: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    size = (len(plane), plane.shape[1] * plane.element_size())
    return torch.randint(256, size, generator=generator, dtype=torch.uint8).view(plane.dtype)


def _random_halves(plane: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Float16 numbers from 0.5 to 1.5, whatever the plane calls them."""
    size = (len(plane), plane.shape[1] * plane.element_size() // 2)
    values = torch.rand(size, generator=generator).add(0.5).half()
    return values.view(torch.uint8).view(plane.dtype)
