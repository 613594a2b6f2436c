"""Self-attention whose output is gated head by head, as Qwen3.5 has it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.context import ForwardContext
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.gated_heads import AddsAttention, GatedHeads
from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormedProduct, NormWeight
from luce.engine.ops.qkv import HeadNorms, PlaceQkv, Placing


@dataclass(frozen=True, slots=True)
class GatedAttention:
    """One layer's attention.

    Attributes:
        layer: index among the layers of full attention, that of its cache.
        heads: geometry.
        norm: of the input.
        qkv: queries with their gates, keys and values in one product: [2 (H + K) * D, hidden].
            Each head's query is followed by its gate.
        output: [hidden, H * D].
        product: norm and qkv.
        head_norms: of each query and key head.
        place_qkv: norm, rotation and write to the cache.
        gated_heads: queries apart from gates and to their places, and gates onto the result.
    """

    layer: int
    heads: HeadShape
    norm: NormWeight
    qkv: Linear
    output: Linear
    product: NormedProduct
    head_norms: HeadNorms
    place_qkv: PlaceQkv
    gated_heads: GatedHeads

    def forward(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """hidden + attention(norm(hidden)), [T, hidden]; `hidden` may be overwritten.

        The step's keys and values enter the cache.
        """
        projected = self.product(hidden, self.norm, self.qkv)
        cache = ctx.kv_layers[self.layer]
        placing = Placing(self.heads, self.head_norms, ctx.places, cache)
        if isinstance(self.gated_heads, AddsAttention):
            attention = self.place_qkv, ctx.attend
            return self.gated_heads.add_attention(
                hidden, projected, placing, attention, self.output
            )
        packed = self.gated_heads.place(projected, placing, self.place_qkv)
        split = packed.view(len(packed), -1, self.heads.head_dim)
        mixed = self.gated_heads.attend(ctx.attend, split, cache, projected, self.heads)
        return self.output.add_to(hidden, mixed)
