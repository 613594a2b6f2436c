"""config.json keys of Qwen3.5 hybrids and of mixtures of experts.

Source: the configuration classes of transformers 5 and the released files.
"""

from __future__ import annotations

from typing import get_args

from luce.loaders.hparams import Experts, LayerType, LinearAttention
from luce.loaders.keys import Keys
from luce.loaders.linear_attention import check_linear, pattern

_DEFAULT_INTERVAL = 4
_DEFAULT_PARTIAL_ROTARY = 0.25
HYBRID_HARMLESS = frozenset((
    "mamba_ssm_dtype", "mrope_interleaved", "mrope_section", "mtp_use_dedicated_embeddings",
    "output_router_logits", "router_aux_loss_coef",
))  # fmt: skip
"""Types of states, training, and axes on which positions of text are the same."""
VISION_HARMLESS = frozenset((
    "image_token_id", "language_model_only", "text_config", "video_token_id", "vision_config",
    "vision_end_token_id", "vision_start_token_id",
))  # fmt: skip
"""What a model that also sees says beside its text_config."""


def hf_linear_attention(keys: Keys, num_layers: int) -> LinearAttention:
    """Geometry of a hybrid's linear layers; value heads are grouped."""
    keys.only("attn_output_gate", (True,), "attention without an output gate is not supported")
    found = LinearAttention(
        layer_types=_layer_types(keys, num_layers),
        num_key_heads=keys.count("linear_num_key_heads"),
        num_value_heads=keys.count("linear_num_value_heads"),
        key_head_dim=keys.count("linear_key_head_dim"),
        value_head_dim=keys.count("linear_value_head_dim"),
        conv_kernel=keys.count("linear_conv_kernel_dim", minimum=2),
        head_order="grouped",
        decay_is_log=True,
    )
    check_linear(keys, "linear_num_value_heads", found)
    return found


def _layer_types(keys: Keys, num_layers: int) -> tuple[LayerType, ...]:
    interval = keys.count("full_attention_interval", _DEFAULT_INTERVAL)
    if not keys.has("layer_types"):
        return pattern(num_layers, interval)
    known: dict[str, LayerType] = {each: each for each in get_args(LayerType)}
    names = keys.texts("layer_types")
    if not known.keys() >= set(names):
        keys.refuse("layer_types", f"supported are {' and '.join(known)}")
    kinds = tuple(known[name] for name in names)
    if len(kinds) != num_layers:
        keys.refuse("layer_types", f"{num_layers} layers need a type each")
    return kinds


def hf_rotary_dim(keys: Keys, rope: Keys | None, head_dim: int) -> int:
    """Numbers of a head that are rotated.

    Args:
        rope: the rotary parameters, where they stand apart.
    """
    where = rope if rope is not None and rope.has("partial_rotary_factor") else keys
    share = where.number("partial_rotary_factor", _DEFAULT_PARTIAL_ROTARY)
    rotary_dim = int(head_dim * share)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        where.refuse(
            "partial_rotary_factor", f"it must leave an even part of the head dimension {head_dim}"
        )
    return 0 if rotary_dim == head_dim else rotary_dim


def hf_experts(keys: Keys, *, has_shared: bool) -> Experts:
    """A mixture of experts.

    Args:
        has_shared: one more expert sees every token, and weights are always scaled to sum to 1.
    """
    keys.only("decoder_sparse_step", (1,), "dense layers among the mixtures are not supported")
    keys.only("mlp_only_layers", ([],), "dense layers among the mixtures are not supported")
    keys.has("intermediate_size")  # of dense layers, which there are none
    if has_shared:
        keys.only("norm_topk_prob", (True,), "supported is true")
    name = "num_experts" if keys.has("num_experts") else "num_local_experts"
    num_experts = keys.count(name)
    num_per_token = keys.count("num_experts_per_tok")
    if num_per_token > num_experts:
        keys.refuse("num_experts_per_tok", f"there are only {num_experts} experts")
    return Experts(
        num_experts=num_experts,
        num_per_token=num_per_token,
        size=keys.count("moe_intermediate_size"),
        shared_size=keys.count("shared_expert_intermediate_size") if has_shared else 0,
        norm_weights=has_shared or keys.flag("norm_topk_prob", False),
    )
