"""`ops.projection.NormedProduct` out of the single operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.pointwise import RmsNorm, SiluAndMul
from luce.engine.ops.projection import NormWeight


@dataclass(frozen=True, slots=True)
class StepwiseProduct:
    """Norm, then product."""

    rms_norm: RmsNorm

    def __call__(self, x: torch.Tensor, norm: NormWeight, linear: Linear) -> torch.Tensor:
        """[T, in] → [T, out]."""
        return linear(self.rms_norm(x, norm.weight, norm.eps))


@dataclass(frozen=True, slots=True)
class StepwiseGatedProduct:
    """Norm, product, gate."""

    rms_norm: RmsNorm
    silu_and_mul: SiluAndMul

    def __call__(self, x: torch.Tensor, norm: NormWeight, linear: Linear) -> torch.Tensor:
        """[T, in] → [T, out / 2]."""
        return self.silu_and_mul(linear(self.rms_norm(x, norm.weight, norm.eps)))
