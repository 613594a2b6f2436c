"""What one forward pass knows besides its tokens. Explicit: no layer reads a global."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.hidden_taps import StepTap
from luce.engine.ops.attention import AttentionStep
from luce.engine.ops.gated_delta import NO_STATES, LayerState, StateBatch
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.qkv import TokenPlaces


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """One step, as the layers see it.

    Attributes:
        places: angles and cache slots of the tokens.
        attend: the attention of this step, prepared once for all layers.
        kv_layers: per layer of full attention the cache, [N, P, 2, K, D] or a typed one.
        states: whose recurrent states the step advances, if the model has any.
        state_layers: per recurrent layer the states of all slots.
        tap: is shown the residual stream behind every block; None: nobody looks.
        embedded: [T, hidden]: the tokens' embeddings, where they are looked up already.
        leaves_norm: the last norm is left to `models.base.Model.normed_logits`.
    """

    places: TokenPlaces
    attend: AttentionStep
    kv_layers: tuple[KVCache, ...]
    states: StateBatch = NO_STATES
    state_layers: tuple[LayerState, ...] = ()
    tap: StepTap | None = None
    embedded: torch.Tensor | None = None
    leaves_norm: bool = False
