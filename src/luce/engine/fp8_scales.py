"""Scales of FP8 matrices: one for the matrix, one a row, or one for each block of 128x128.

A matrix "x.weight" of e4m3 numbers comes with "x.weight_scale_inv" (blocks, as DeepSeek and Qwen
publish them) or "x.weight_scale" (one, or one a row); a value is number times scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.errors import ModelFileError
from luce.loaders.checkpoint import TensorMeta, TensorSource
from luce.loaders.fp8_names import BLOCK, FP8_TYPE, SCALE_NAMES, scale_shapes

__all__ = ["FP8_TYPE", "Fp8Scales", "read_scales"]
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Fp8Scales:
    """Scales of one matrix [N, K].

    Attributes:
        values: f32 on the host: [1, 1], [N, 1] or [ceil(N / 128), ceil(K / 128)].
        row_block: rows that share a scale.
    """

    values: torch.Tensor
    row_block: int

    def apply(self, start: int, target: torch.Tensor, numbers: torch.Tensor) -> None:
        """Write rows start .. of the matrix to `target`, from their numbers on its device."""
        rows, columns = numbers.shape
        index = torch.arange(start, start + rows) // self.row_block
        scales = self.values[index].to(numbers.device)
        if scales.shape[1] > 1:
            scales = scales.repeat_interleave(BLOCK, dim=1)[:, :columns]
        target.copy_(numbers.float() * scales)


def read_scales(source: TensorSource, meta: TensorMeta) -> Fp8Scales:
    """The scales of an FP8 matrix.

    Raises:
        ModelFileError: they are missing or do not fit the matrix.
    """
    names = set(source.names())
    for suffix in SCALE_NAMES:
        name = meta.name.removesuffix("weight") + suffix
        if name in names:
            return _fitted(source, source.meta(name), meta)
    raise ModelFileError(f"tensor {meta.name!r} is {FP8_TYPE}, but its scales are missing")


def _fitted(source: TensorSource, scale: TensorMeta, meta: TensorMeta) -> Fp8Scales:
    dtype = _DTYPES.get(scale.type)
    shapes = scale_shapes(scale.name, meta.shape)
    if dtype is None or scale.shape not in shapes:
        raise ModelFileError(
            f"tensor {scale.name!r} is {scale.type} {list(scale.shape)}, which are no scales of "
            f"{meta.name!r} {list(meta.shape)}"
        )
    values = torch.frombuffer(bytearray(source.raw(scale.name)), dtype=dtype).float()
    rows = meta.shape[0]
    if values.numel() == 1:
        return Fp8Scales(values.view(1, 1), rows)
    if scale.name.endswith("_inv"):
        return Fp8Scales(values.view(scale.shape), BLOCK)
    return Fp8Scales(values.view(rows, 1), 1)
