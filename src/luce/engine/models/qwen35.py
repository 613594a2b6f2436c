"""Qwen3.5, 3.6 and 3.8: layers of gated DeltaNet, and every few layers one of gated attention.

Files differ in three ways, which the hyper-parameters tell: GGUF stores norms as they multiply,
-A instead of log(A), and value heads in another order; that order is kept.
"""

from __future__ import annotations

import torch

from luce.engine.layers.gated_attention import GatedAttention
from luce.engine.layers.gated_delta import GatedDeltaNet
from luce.engine.models.base import Parameters
from luce.engine.models.dense import DenseBuilder, Mixer
from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights
from luce.engine.ops.select import OpSet
from luce.errors import ModelFileError
from luce.loaders.hparams import HParams, LinearAttention


class HybridBuilder(DenseBuilder):
    """Builds the layers of a Qwen3.5; all else is as in a dense model."""

    def __init__(
        self, hparams: HParams, parameters: Parameters, ops: OpSet, max_positions: int
    ) -> None:
        super().__init__(hparams, parameters, ops, max_positions)
        linear = hparams.linear_attention
        if linear is None:
            raise ModelFileError(f"a {hparams.architecture} model needs linear layers")
        self._linear_attention: LinearAttention = linear
        self._delta_shape = delta_shape(linear)

    def attention(self, index: int, prefix: str) -> Mixer:
        """The layer's attention, of its kind."""
        kinds = self._linear_attention.layer_types
        # Each kind has its own cache or states, counted without the other's layers.
        place = kinds[:index].count(kinds[index])
        if kinds[index] == "linear_attention":
            return self._gated_delta(place, prefix)
        return self._gated_attention(place, prefix)

    def _gated_attention(self, place: int, prefix: str) -> GatedAttention:
        hparams = self.hparams
        q_rows = hparams.num_heads * hparams.head_dim
        kv_rows = hparams.num_kv_heads * hparams.head_dim
        norm = self.norm(f"{prefix}input_layernorm.weight")
        prefix = f"{prefix}self_attn."
        rows = (("q_proj", 2 * q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows))
        weights = tuple((f"{prefix}{name}.weight", count) for name, count in rows)
        return GatedAttention(
            layer=place,
            heads=self.heads,
            norm=norm,
            qkv=self.linear(*weights, columns=hparams.hidden_size),
            output=self.linear((f"{prefix}o_proj.weight", hparams.hidden_size), columns=q_rows),
            product=self.ops.product,
            head_norms=self.head_norms(prefix),
            place_qkv=self.ops.place_qkv,
            gated_heads=self.ops.gated_heads,
        )

    def _gated_delta(self, place: int, prefix: str) -> GatedDeltaNet:
        shape, hidden = self._delta_shape, self.hparams.hidden_size
        norm = self.norm(f"{prefix}input_layernorm.weight")
        prefix = f"{prefix}linear_attn."
        heads = shape.num_value_heads
        rows = (("qkv", shape.channels), ("z", shape.value_size), ("b", heads), ("a", heads))
        weights = tuple((f"{prefix}in_proj_{name}.weight", count) for name, count in rows)
        out = (f"{prefix}out_proj.weight", hidden)
        return GatedDeltaNet(
            layer=place,
            shape=shape,
            norm=norm,
            projection=self.linear(*weights, columns=hidden),
            output=self.linear(out, columns=shape.value_size),
            weights=self._delta_weights(prefix),
            product=self.ops.product,
            op=self.ops.gated_delta,
        )

    def _delta_weights(self, prefix: str) -> DeltaWeights:
        shape, heads = self._delta_shape, (self._delta_shape.num_value_heads,)
        conv_shape = (shape.channels, 1, shape.conv_width)
        conv = self.parameters.floats(f"{prefix}conv1d.weight", conv_shape).squeeze(1)
        decay = self.parameters.floats(f"{prefix}A_log", heads)
        if self._linear_attention.decay_is_log:
            decay = -torch.exp(decay)
        norm = self.parameters.floats(f"{prefix}norm.weight", (shape.value_head_dim,))
        return DeltaWeights(
            conv=conv.to(self.dtype),
            decay=decay,
            dt_bias=self.parameters.floats(f"{prefix}dt_bias", heads),
            norm=norm.to(self.dtype),
            eps=self.hparams.rms_norm_eps,
        )


def delta_shape(linear: LinearAttention) -> DeltaShape:
    """The geometry of a model's linear layers."""
    return DeltaShape(
        num_key_heads=linear.num_key_heads,
        num_value_heads=linear.num_value_heads,
        key_head_dim=linear.key_head_dim,
        value_head_dim=linear.value_head_dim,
        conv_width=linear.conv_kernel,
        is_tiled=linear.head_order == "tiled",
    )
