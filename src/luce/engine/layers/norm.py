"""RMS normalisation with its weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.pointwise import RmsNorm


@dataclass(frozen=True, slots=True)
class Norm:
    """Normalises the last axis.

    Attributes:
        weight: [size].
        eps: added to the mean square.
        op: the implementation.
    """

    weight: torch.Tensor
    eps: float
    op: RmsNorm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x, self.weight, self.eps)
