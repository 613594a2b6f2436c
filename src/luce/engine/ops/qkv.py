"""What happens to queries, keys and values between their product and attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from luce.engine.ops.attention import HeadShape
from luce.engine.ops.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights of the norms on each query and key head, [D] each."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Where the step's tokens stand.

    Attributes:
        rotary: f32 [T, 1, D/2, 2]: cosine and sine of each token's position.
        slot_mapping: i64 [T]: block * P + offset; distinct, but for the null block's.
    """

    rotary: torch.Tensor
    slot_mapping: torch.Tensor


class PlaceQkv(Protocol):
    """Norm, rotation and cache write in one."""

    def __call__(
        self,
        packed: torch.Tensor,
        heads: HeadShape,
        norms: HeadNorms | None,
        places: TokenPlaces,
        cache: KVCache,
    ) -> None:
        """Normalise and rotate queries and keys, write keys and values to the cache.

        Args:
            packed: [T, (H + 2K) * D], q | k | v; queries are changed in place, and keys may be.
            heads: geometry.
            norms: applied before the rotation, where the model has them.
            places: angles and slots.
            cache: [N, P, 2, K, D], or a typed one; overwritten at the slots.
        """


@dataclass(frozen=True, slots=True)
class Placing:
    """What `PlaceQkv` is given besides queries, keys and values."""

    heads: HeadShape
    norms: HeadNorms | None
    places: TokenPlaces
    cache: KVCache


@dataclass(frozen=True, slots=True)
class UnnormedRows:
    """What a product read without the norm before it, whose weight is in the product's columns.

    Attributes:
        x: [T, hidden], contiguous.
        eps: added to the mean square of each row.
    """

    x: torch.Tensor
    eps: float
