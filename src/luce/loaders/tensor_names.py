"""From parameter names to those of the two file kinds.

A parameter is called as in transformers, without the leading "model.":
`layers.0.mlp.up_proj.weight`. Matrices of all experts go by one name,
`layers.0.mlp.experts.up_proj.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from luce.loaders.checkpoint import Container

_GGUF_TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "rope_freqs": "rope_freqs.weight",
}
_GGUF_BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
# Not every tensor's name ends in "weight", and not the same way in both.
_GGUF_WHOLE = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
_HYBRID_BLOCK = {"post_attention_layernorm": "post_attention_norm"}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_TEXT_PREFIXES = ("model.language_model.", "language_model.model.")


def gguf_name(name: str, architecture: str = "llama") -> str:
    """`layers.0.mlp.up_proj.weight` → `blk.0.ffn_up.weight`."""
    match = _LAYER.fullmatch(name)
    if match is None:
        return _GGUF_TOP[name]
    layer, rest = match.groups()
    whole = _GGUF_WHOLE.get(rest)
    if whole is not None:
        return f"blk.{layer}.{whole}"
    module, _, kind = rest.rpartition(".")
    names = _GGUF_BLOCK
    if architecture in ("qwen35", "qwen35moe"):
        names = _GGUF_BLOCK | _HYBRID_BLOCK
    return f"blk.{layer}.{names[module]}.{kind}"


def safetensors_name(name: str, prefix: str = "model.") -> str:
    """`layers.0.mlp.up_proj.weight` → `model.layers.0.mlp.up_proj.weight`."""
    if name.startswith("lm_head."):
        return name
    if name.endswith((".experts.gate_up_proj.weight", ".experts.down_proj.weight")):
        # One tensor of three dimensions, which is no module's weight.
        name = name.removesuffix(".weight")
    return f"{prefix}{name}"


def expert_name(name: str, index: int) -> str:
    """`layers.0.mlp.experts.up_proj.weight` → `layers.0.mlp.experts.7.up_proj.weight`."""
    return name.replace(".experts.", f".experts.{index}.")


def stored_names(
    container: Container, architecture: str, names: Iterable[str]
) -> Callable[[str], str]:
    """From parameters to tensors of a checkpoint.

    Args:
        container: its kind.
        architecture: of its model.
        names: its tensors' names; models that also see have the language model one level down.
    """
    if container == "gguf":
        return lambda name: gguf_name(name, architecture)
    prefix = next((each for name in names for each in _TEXT_PREFIXES if name.startswith(each)), "")
    return lambda name: safetensors_name(name, prefix or "model.")
