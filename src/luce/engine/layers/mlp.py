"""The feed-forward block: SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.pointwise import SiluAndMul


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(silu(gate x) * up x).

    Attributes:
        gate_up: gate and up in one product, [2F, hidden].
        down: [hidden, F].
        silu_and_mul: the implementation of the gate.
    """

    gate_up: Linear
    down: Linear
    silu_and_mul: SiluAndMul

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + block(x), [T, hidden]."""
        return self.down.add_to(residual, self.silu_and_mul(self.gate_up(x)))
