"""A norm and the product that reads it, and what stands behind the product, as one operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from luce.engine.ops.linear import Linear


@dataclass(frozen=True, slots=True)
class NormWeight:
    """RMS normalisation with its weight: [size] and what is added to the mean square."""

    weight: torch.Tensor
    eps: float


class NormedProduct(Protocol):
    """linear(norm(x)), or silu(gate) * up of it where the weight is gate | up."""

    def __call__(self, x: torch.Tensor, norm: NormWeight, linear: Linear) -> torch.Tensor:
        """[T, in] → [T, out], or [T, out / 2] gated."""
