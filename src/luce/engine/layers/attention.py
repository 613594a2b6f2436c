"""Self-attention with grouped heads, rotary positions and a paged cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.context import ForwardContext
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormedProduct, NormWeight
from luce.engine.ops.qkv import HeadNorms, PlaceQkv


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """One layer's attention.

    Attributes:
        layer: index of the layer, that of its cache.
        heads: geometry.
        norm: of the input.
        qkv: q, k and v in one product, rows in this order: [(H + 2K) * D, hidden].
        output: [hidden, H * D].
        product: norm and qkv.
        head_norms: of each query and key head, where the model has them.
        place_qkv: norm, rotation and write to the cache.
    """

    layer: int
    heads: HeadShape
    norm: NormWeight
    qkv: Linear
    output: Linear
    product: NormedProduct
    head_norms: HeadNorms | None
    place_qkv: PlaceQkv

    def forward(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """hidden + attention(norm(hidden)), [T, hidden]; `hidden` may be overwritten.

        The step's keys and values enter the cache.
        """
        packed = self.product(hidden, self.norm, self.qkv)
        cache = ctx.kv_layers[self.layer]
        self.place_qkv(packed, self.heads, self.head_norms, ctx.places, cache)
        num_heads = self.heads.num_heads + 2 * self.heads.num_kv_heads
        split = packed.view(-1, num_heads, self.heads.head_dim)
        return self.output.add_to(hidden, ctx.attend(split, cache))
