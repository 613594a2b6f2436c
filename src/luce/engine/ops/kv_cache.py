"""One layer's cache where keys or values are stored otherwise than the model computes.

A plain cache is one tensor [N, P, 2, K, D]. This one has a tensor each for keys and values, and
quantised ones hold codes and scales for groups of 32 numbers along a head:

- q8_0: int8 codes, value = scale * code, scale = largest magnitude / 127.
- q4_0: two codes a byte, value = scale * (code - 8), scale = the number of largest magnitude
  / -8. Byte j of a group's 16 holds number j in its low half and number j + 16 in its high half.

Scales are float16. Source: ggml's block types of these names, with codes and scales apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.kv.spec import KVType


@dataclass(frozen=True, slots=True)
class CachePart:
    """Keys or values of one layer.

    Attributes:
        type: how they are stored.
        data: [N, P, K, W]: D numbers, D int8 codes, or D/2 uint8 of two codes.
        scales: f16 [N, P, K, D/32] of codes, else None.
    """

    type: KVType
    data: torch.Tensor
    scales: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class TypedCache:
    """Keys and values of one layer, each in a type of its own."""

    keys: CachePart
    values: CachePart


KVCache = torch.Tensor | TypedCache
