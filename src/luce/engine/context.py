"""What one forward pass knows besides its tokens. Explicit: no layer reads a global."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.attention import AttentionStep
from luce.engine.ops.qkv import TokenPlaces


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """One step, as the layers see it.

    Attributes:
        places: angles and cache slots of the tokens.
        attend: the attention of this step, prepared once for all layers.
        kv_layers: per layer the cache [N, P, 2, K, D].
    """

    places: TokenPlaces
    attend: AttentionStep
    kv_layers: tuple[torch.Tensor, ...]
