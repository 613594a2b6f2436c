"""Attention whose heads have gates: queries and gates come from one product, head by head."""

from __future__ import annotations

from typing import Protocol

import torch

from luce.engine.ops.attention import HeadShape


class GatedHeads(Protocol):
    """What stands between the products and attention.

    `projected` is [T, (2H + 2K) * D], contiguous: each head's query and then its gate, then keys,
    then values.
    """

    def split(self, projected: torch.Tensor, heads: HeadShape) -> torch.Tensor:
        """Queries | keys | values without the gates, [T, (H + 2K) * D], in memory of its own."""

    def gate(self, mixed: torch.Tensor, projected: torch.Tensor, heads: HeadShape) -> torch.Tensor:
        """mixed * sigmoid(gates), [T, H * D]; `mixed` may be overwritten."""
