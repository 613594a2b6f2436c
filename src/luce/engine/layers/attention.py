"""Self-attention with grouped heads, rotary positions and a paged cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.context import ForwardContext
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormWeight, ProjectQkv
from luce.engine.ops.qkv import HeadNorms, Placing


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """One layer's attention.

    Attributes:
        layer: index of the layer, that of its cache.
        heads: geometry.
        norm: of the input.
        qkv: q, k and v in one product, rows in this order: [(H + 2K) * D, hidden].
        output: [hidden, H * D].
        head_norms: of each query and key head, where the model has them.
        project: norm and qkv; head norms, rotation and write to the cache.
    """

    layer: int
    heads: HeadShape
    norm: NormWeight
    qkv: Linear
    output: Linear
    head_norms: HeadNorms | None
    project: ProjectQkv

    def forward(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """hidden + attention(norm(hidden)), [T, hidden]; `hidden` may be overwritten.

        The step's keys and values enter the cache.
        """
        cache = ctx.kv_layers[self.layer]
        placing = Placing(self.heads, self.head_norms, ctx.places, cache)
        packed = self.project(hidden, self.norm, self.qkv, placing)
        num_heads = self.heads.num_heads + 2 * self.heads.num_kv_heads
        split = packed.view(-1, num_heads, self.heads.head_dim)
        return self.output.add_to(hidden, ctx.attend(split, cache))
