"""GGUF keys of Qwen3.5 hybrids and of mixtures of experts.

Source: llama.cpp's converters and loaders of these architectures.
"""

from __future__ import annotations

from luce.loaders.hparams import Experts, LayerType, LinearAttention
from luce.loaders.keys import Keys, layer_flags
from luce.loaders.linear_attention import check_linear, pattern

_DEFAULT_INTERVAL = 4


def num_mtp_layers(keys: Keys) -> int:
    """Blocks at the end that only draft tokens; the block count includes them.

    Raises:
        ModelFileError: there is nothing else.
    """
    num_mtp = keys.count("nextn_predict_layers", default=0, minimum=0)
    if num_mtp and num_mtp >= keys.count("block_count"):
        keys.refuse(
            "nextn_predict_layers",
            "no block is left for the model itself: a file of drafting layers alone cannot be "
            "served",
        )
    return num_mtp


def gguf_linear_attention(keys: Keys, num_layers: int) -> LinearAttention:
    """Geometry of a hybrid's linear layers; value heads are stored tiled."""
    num_value_heads = keys.count("ssm.time_step_rank")
    value_size = keys.count("ssm.inner_size")
    if value_size % num_value_heads:
        keys.refuse("ssm.inner_size", f"the {num_value_heads} value heads do not divide it")
    for key in ("rope.dimension_sections", "ssm.dt_b_c_rms"):
        keys.has(key)  # positions of text are the same in all sections
    found = LinearAttention(
        layer_types=_layer_types(keys, num_layers),
        num_key_heads=keys.count("ssm.group_count"),
        num_value_heads=num_value_heads,
        key_head_dim=keys.count("ssm.state_size"),
        value_head_dim=value_size // num_value_heads,
        conv_kernel=keys.count("ssm.conv_kernel", minimum=2),
        head_order="tiled",
        decay_is_log=False,
    )
    check_linear(keys, "ssm.time_step_rank", found)
    return found


def _layer_types(keys: Keys, num_layers: int) -> tuple[LayerType, ...]:
    interval = keys.count("full_attention_interval", _DEFAULT_INTERVAL)
    flags = layer_flags(keys, "attention.recurrent_layers")
    if flags is None:
        return pattern(num_layers, interval)
    if len(flags) < num_layers:
        keys.refuse("attention.recurrent_layers", f"{num_layers} layers need a value each")
    kinds: dict[bool, LayerType] = {True: "linear_attention", False: "full_attention"}
    return tuple(kinds[flag] for flag in flags[:num_layers])


def gguf_experts(keys: Keys, *, has_shared: bool) -> Experts:
    """A mixture of experts.

    Args:
        has_shared: one more expert sees every token.
    """
    keys.only("expert_gating_func", (1,), "supported is softmax (1)")
    keys.only("expert_weights_scale", (1, 1.0), "scaled expert weights are not supported")
    keys.only("expert_shared_count", (0, 1) if has_shared else (0,), "this count is not supported")
    num_experts = keys.count("expert_count")
    num_per_token = keys.count("expert_used_count")
    if num_per_token > num_experts:
        keys.refuse("expert_used_count", f"there are only {num_experts} experts")
    size = keys.count("expert_feed_forward_length")
    return Experts(
        num_experts=num_experts,
        num_per_token=num_per_token,
        size=size,
        shared_size=keys.count("expert_shared_feed_forward_length", size) if has_shared else 0,
        # Released models all do; files seldom say.
        norm_weights=keys.flag("expert_weights_norm", True),
    )
