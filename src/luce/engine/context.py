"""What one forward pass knows besides its tokens. Explicit: no layer reads a global."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.attention import AttentionStep


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """One step, as the layers see it.

    Attributes:
        rotary: f32 [T, 1, D/2, 2]: cosine and sine of each token's position.
        slot_mapping: i64 [T]: where each token's keys and values go, block * P + offset.
        attend: the attention of this step, prepared once for all layers.
        kv_layers: per layer the cache [N, P, 2, K, D].
    """

    rotary: torch.Tensor
    slot_mapping: torch.Tensor
    attend: AttentionStep
    kv_layers: tuple[torch.Tensor, ...]
