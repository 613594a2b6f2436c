"""Self-attention with grouped heads, rotary positions and a paged cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.context import ForwardContext
from luce.engine.layers.norm import Norm
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.linear import Linear
from luce.engine.ops.pointwise import Rotate, StoreKV


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """One layer's attention.

    Attributes:
        layer: index of the layer, that of its cache.
        heads: geometry.
        qkv: q, k and v in one product, rows in this order: [(H + 2K) * D, hidden].
        output: [hidden, H * D].
        q_norm: over D, before the rotation; with `k_norm` or not at all.
        rotate: in place.
        store_kv: writes to the cache.
    """

    layer: int
    heads: HeadShape
    qkv: Linear
    output: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    rotate: Rotate
    store_kv: StoreKV

    def forward(self, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """residual + attention(x), [T, hidden]; the step's keys and values enter the cache."""
        num_q, num_kv, dim = self.heads.num_heads, self.heads.num_kv_heads, self.heads.head_dim
        packed = self.qkv(x)
        split = packed.view(-1, num_q + 2 * num_kv, dim)
        if self.q_norm is not None and self.k_norm is not None:
            split[:, :num_q] = self.q_norm.forward(split[:, :num_q])
            split[:, num_q : num_q + num_kv] = self.k_norm.forward(split[:, num_q : num_q + num_kv])
        # Queries and keys lie side by side and take the same angles: one rotation for both.
        self.rotate(split[:, : num_q + num_kv], ctx.rotary)
        cache = ctx.kv_layers[self.layer]
        self.store_kv(packed[:, num_q * dim :], cache, ctx.slot_mapping)
        return self.output.add_to(residual, ctx.attend(split, cache))
