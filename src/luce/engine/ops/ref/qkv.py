"""`ops.qkv.PlaceQkv` out of the single operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.attention import HeadShape
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.linear import Linear
from luce.engine.ops.pointwise import RmsNorm, Rotate, StoreKV
from luce.engine.ops.projection import NormedProduct, NormWeight
from luce.engine.ops.qkv import HeadNorms, PlaceQkv, Placing, TokenPlaces


@dataclass(frozen=True, slots=True)
class StepwisePlaceQkv:
    """One operation after the other, each as it was chosen."""

    rms_norm: RmsNorm
    rotate: Rotate
    store_kv: StoreKV

    def __call__(
        self,
        packed: torch.Tensor,
        heads: HeadShape,
        norms: HeadNorms | None,
        places: TokenPlaces,
        cache: KVCache,
    ) -> None:
        """Norm, rotate, store."""
        num_q, num_kv, dim = heads.num_heads, heads.num_kv_heads, heads.head_dim
        split = packed.view(-1, num_q + 2 * num_kv, dim)
        if norms is not None:
            queries, keys = split[:, :num_q], split[:, num_q : num_q + num_kv]
            split[:, :num_q] = self.rms_norm(queries, norms.query, norms.eps)
            split[:, num_q : num_q + num_kv] = self.rms_norm(keys, norms.key, norms.eps)
        # Queries and keys lie side by side and take the same angles: one rotation for both.
        # A model may rotate the leading part of a head alone.
        rotated = 2 * places.rotary.shape[-2]
        self.rotate(split[:, : num_q + num_kv, :rotated], places.rotary)
        self.store_kv(packed[:, num_q * dim :], cache, places.slot_mapping)


@dataclass(frozen=True, slots=True)
class PlacedProduct:
    """`ops.projection.ProjectQkv`: one operation after the other."""

    product: NormedProduct
    place_qkv: PlaceQkv

    def __call__(
        self, hidden: torch.Tensor, norm: NormWeight, linear: Linear, placing: Placing
    ) -> torch.Tensor:
        """Product, then place."""
        packed = self.product(hidden, norm, linear)
        self.place_qkv(packed, placing.heads, placing.norms, placing.places, placing.cache)
        return packed
