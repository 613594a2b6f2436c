"""Attention whose heads have gates: queries and gates come from one product, head by head."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from luce.engine.ops.attention import AttentionStep, HeadShape
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.linear import Linear
from luce.engine.ops.qkv import PlaceQkv, Placing


class GatedHeads(Protocol):
    """What stands between the products and attention.

    `projected` is [T, (2H + 2K) * D], contiguous: each head's query and then its gate, then keys,
    then values.
    """

    def split(self, projected: torch.Tensor, heads: HeadShape) -> torch.Tensor:
        """Queries | keys | values without the gates, [T, (H + 2K) * D], in memory of its own."""

    def place(self, projected: torch.Tensor, placing: Placing, place_qkv: PlaceQkv) -> torch.Tensor:
        """`split`, and then `place_qkv` of it; keys and values may be left out of the result.

        Args:
            projected: as for `split`.
            placing: geometry, norms, angles, slots and the cache.
            place_qkv: the model's.

        Returns:
            Queries, normalised and rotated, | room for keys and values: [T, (H + 2K) * D].
        """

    def attend(
        self,
        step: AttentionStep,
        packed: torch.Tensor,
        cache: KVCache,
        projected: torch.Tensor,
        heads: HeadShape,
    ) -> torch.Tensor:
        """`gate` of what `step` gives for these queries, [T, H + 2K, D], and this cache."""

    def gate(self, mixed: torch.Tensor, projected: torch.Tensor, heads: HeadShape) -> torch.Tensor:
        """mixed * sigmoid(gates), [T, H * D]; `mixed` may be overwritten."""


@runtime_checkable
class AddsAttention(Protocol):
    """A `GatedHeads` that has all of it in its hands, with the product behind."""

    def add_attention(
        self,
        hidden: torch.Tensor,
        projected: torch.Tensor,
        placing: Placing,
        attention: tuple[PlaceQkv, AttentionStep],
        output: Linear,
    ) -> torch.Tensor:
        """hidden + output(attention with gates), [T, hidden]; `hidden` may be overwritten.

        Args:
            hidden: [T, hidden].
            projected: as for `GatedHeads.split`.
            placing: geometry, norms, angles, slots and the cache.
            attention: the model's, of the step.
            output: the product.
        """
