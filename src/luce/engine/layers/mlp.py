"""The feed-forward block: SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormedProduct, NormWeight


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(silu(gate n) * up n), n being x normalised.

    Attributes:
        norm: of the input.
        gate_up: gate and up in one product, [2F, hidden].
        down: [hidden, F].
        gated_product: norm, gate_up and gate.
    """

    norm: NormWeight
    gate_up: Linear
    down: Linear
    gated_product: NormedProduct

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden + block(hidden), [T, hidden]; `hidden` may be overwritten."""
        return self.down.add_to(hidden, self.gated_product(hidden, self.norm, self.gate_up))
