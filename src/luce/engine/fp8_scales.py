"""Scales of FP8 matrices: one for the matrix, one a row, or one for each block of 128x128.

A matrix "x.weight" of e4m3 numbers comes with "x.weight_scale_inv" (blocks, as DeepSeek and Qwen
publish them) or "x.weight_scale" (one, or one a row); a value is number times scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.errors import ModelFileError
from luce.loaders.checkpoint import TensorMeta, TensorSource
from luce.loaders.fp8_names import BLOCK, FP8_TYPE, scale_form, scales_of

__all__ = ["FP8_TYPE", "Fp8Scales", "read_scales"]
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Fp8Scales:
    """Scales of one matrix [N, K].

    Attributes:
        values: f32 on the host: [1, 1], [N, 1] or [ceil(N / 128), ceil(K / 128)].
        rows: N.
        is_block: the last of these.
    """

    values: torch.Tensor
    rows: int
    is_block: bool

    def apply(self, start: int, target: torch.Tensor, numbers: torch.Tensor) -> None:
        """Write rows start .. of the matrix to `target`, from their numbers on its device."""
        rows, columns = numbers.shape
        index = torch.arange(start, start + rows) // (BLOCK if self.is_block else 1)
        scales = self.values[index.clamp_max(len(self.values) - 1)].to(numbers.device)
        if self.is_block:
            scales = scales.repeat_interleave(BLOCK, dim=1)[:, :columns]
        target.copy_(numbers.float() * scales)


def read_scales(source: TensorSource, meta: TensorMeta) -> Fp8Scales:
    """The scales of an FP8 matrix.

    Raises:
        ModelFileError: they are missing, do not fit the matrix, or are no finite numbers.
    """
    scale = scales_of(source, meta.name)
    if scale is None:
        raise ModelFileError(f"tensor {meta.name!r} is {FP8_TYPE}, but its scales are missing")
    dtype, form = _DTYPES.get(scale.type), scale_form(scale.shape, meta.shape)
    if dtype is None or form is None:
        raise ModelFileError(
            f"tensor {scale.name!r} is {scale.type} {list(scale.shape)}, which are no scales of "
            f"{meta.name!r} {list(meta.shape)}"
        )
    values = torch.frombuffer(bytearray(source.raw(scale.name)), dtype=dtype).float()
    if not values.isfinite().all():
        raise ModelFileError(
            f"tensor {scale.name!r} has scales that are no finite numbers; download it again"
        )
    is_block = form == "block"
    values = values.view(scale.shape) if is_block else values.view(-1, 1)
    return Fp8Scales(values, meta.shape[0], is_block)
