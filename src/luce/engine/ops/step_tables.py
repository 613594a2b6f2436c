"""What a step reads of a model for each token before the first layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.quant_planes import QuantPlanes


@dataclass(frozen=True, slots=True)
class StepTables:
    """Tables by position and by token.

    Attributes:
        angles: f32 [positions, R/2, 2]: cosine and sine.
        embedding: [V, hidden], plain or quantised; None: stored otherwise.
        dtype: what embeddings become.
    """

    angles: torch.Tensor
    embedding: torch.Tensor | QuantPlanes | None
    dtype: torch.dtype
