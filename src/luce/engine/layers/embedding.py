"""Token embedding: a table of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Embedding:
    """Looks tokens up.

    Attributes:
        table: [V, hidden]; may be of a narrower type than the model computes in, if it is exact.
        dtype: what the model computes in.
    """

    table: torch.Tensor
    dtype: torch.dtype

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """i32 [T] → [T, hidden]."""
        return F.embedding(token_ids, self.table).to(self.dtype)
