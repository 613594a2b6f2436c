"""Matrix products with the weight as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """The vendor BLAS over an unpacked weight."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] → [T, out]."""
        return F.linear(x, self.weight, self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y, in place."""
        return residual.add_(F.linear(x, self.weight, self.bias))

    def holds(self, weight: torch.Tensor) -> bool:
        """Whether this is its weight."""
        return self.weight is weight

    @property
    def nbytes(self) -> int:
        """Memory of weight and bias."""
        return self.weight.nbytes + (self.bias.nbytes if self.bias is not None else 0)
