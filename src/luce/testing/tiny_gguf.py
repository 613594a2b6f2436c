"""Writes a tiny model as a GGUF file, with the transformations the usual converter applies."""

from __future__ import annotations

import math
import re
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from luce.testing.tiny_hybrid import gguf_experts, gguf_values
from luce.testing.tiny_tokenizer import (
    CHATML_TEMPLATE,
    ENDOFTEXT_ID,
    MERGES,
    NUM_TOKENS,
    SPECIAL_TOKENS,
    TOKENS,
)
from luce.testing.tiny_weights import TinyConfig, TinyFormat, Weights, llama3_factors

_BLOCK_COLUMNS = 32
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_BLOCK_NAMES = {
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
    "mlp.experts": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_ODD_NAMES = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
_MTP_NAMES = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}
_BLOCK = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias|down_proj)")


def gguf_name(hf_name: str, *, is_hybrid: bool = False) -> str:
    """The GGUF name of a parameter: `model.layers.0.mlp.up_proj.weight` → `blk.0.ffn_up.weight`."""
    odd = hf_name.partition(".linear_attn.")
    if odd[1] and f"linear_attn.{odd[2]}" in _ODD_NAMES:
        return f"blk.{odd[0].rpartition('.')[2]}.{_ODD_NAMES[f'linear_attn.{odd[2]}']}"
    match = _BLOCK.fullmatch(hf_name)
    if match is None:
        return _TOP_NAMES[hf_name]
    module = _BLOCK_NAMES[match[2]]
    if is_hybrid and module == "ffn_norm":
        module = "post_attention_norm"
    kind = "weight" if match[3] == "down_proj" else match[3]
    return f"blk.{match[1]}.{module}.{kind}"


def interleave_rows(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Each head's rows from [a0 a1 .. b0 b1 ..] to [a0 b0 a1 b1 ..], as llama GGUFs have them."""
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _gguf_tensors(config: TinyConfig, weights: Weights) -> Weights:
    tensors: Weights = {}
    for hf_name, values in weights.items():
        if config.family == "llama" and ".q_proj." in hf_name:
            values = interleave_rows(values, config.num_heads)
        elif config.family == "llama" and ".k_proj." in hf_name:
            values = interleave_rows(values, config.num_kv_heads)
        tensors |= _stored(config, hf_name, values)
    if config.rope_scaling is not None and config.rope_scaling.kind == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(config, config.rope_scaling)
    return tensors


def _stored(config: TinyConfig, hf_name: str, values: npt.NDArray[np.float32]) -> Weights:
    """A parameter as the tensors a file has for it; what only sees has no place in it."""
    if ".visual." in hf_name:
        return {}
    if hf_name.startswith("mtp."):
        layer = config.num_layers
        if hf_name in _MTP_NAMES:
            return {f"blk.{layer}.{_MTP_NAMES[hf_name]}": values}
        hf_name = hf_name.replace("mtp.layers.0.", f"model.layers.{layer}.")
    parts = {hf_name: values}
    if hf_name.endswith("experts.gate_up_proj"):
        parts = gguf_experts(hf_name, values)
    elif hf_name.endswith("shared_expert_gate.weight"):
        parts = {hf_name: values.squeeze(0)}
    if config.linear is None:
        return {gguf_name(name): each for name, each in parts.items()}
    return {
        gguf_name(name, is_hybrid=True): gguf_values(name, each, config.linear)
        for name, each in parts.items()
    }


def _add_hybrid_keys(writer: gguf.GGUFWriter, config: TinyConfig) -> None:
    """Keys of linear layers and mixtures, in the spelling of llama.cpp's converter."""
    family, linear, experts = config.family, config.linear, config.experts
    if linear is not None:
        interval = linear.layer_types.index("full_attention") + 1
        for key, value in {
            "full_attention_interval": interval,
            "ssm.conv_kernel": linear.conv_kernel,
            "ssm.state_size": linear.key_head_dim,
            "ssm.group_count": linear.num_key_heads,
            "ssm.time_step_rank": linear.num_value_heads,
            "ssm.inner_size": linear.value_size,
        }.items():
            writer.add_uint32(f"{family}.{key}", value)
        writer.add_rope_dimension_count(config.rotary_dim or config.head_dim)
        writer.add_array(f"{family}.rope.dimension_sections", [2, 1, 1, 0])
    if config.num_mtp_layers:
        writer.add_uint32(f"{family}.nextn_predict_layers", config.num_mtp_layers)
    if experts is not None:
        writer.add_expert_count(experts.num_experts)
        writer.add_expert_used_count(experts.num_per_token)
        writer.add_expert_feed_forward_length(experts.size)
        if experts.shared_size:
            writer.add_expert_shared_feed_forward_length(experts.shared_size)


def _add_hyper_parameters(writer: gguf.GGUFWriter, config: TinyConfig) -> None:
    writer.add_name(f"Tiny {config.family}")
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers + config.num_mtp_layers)
    if config.experts is None or config.linear is None:
        writer.add_feed_forward_length(config.intermediate_size)
    _add_hybrid_keys(writer, config)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    if config.family == "llama":
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_vocab_size(config.vocab_size)
    if config.head_dim * config.num_heads != config.hidden_size:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind != "llama3":
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling.kind))
        writer.add_rope_scaling_factor(scaling.factor)
        if scaling.original_context:
            writer.add_rope_scaling_orig_ctx_len(scaling.original_context)
        if scaling.kind == "yarn":
            writer.add_rope_scaling_yarn_beta_fast(scaling.beta_fast)
            writer.add_rope_scaling_yarn_beta_slow(scaling.beta_slow)


def _add_tokenizer(writer: gguf.GGUFWriter, config: TinyConfig) -> None:
    padding = [f"[PAD{index}]" for index in range(NUM_TOKENS, config.vocab_size)]
    control, normal, unused = (
        gguf.TokenType.CONTROL,
        gguf.TokenType.NORMAL,
        gguf.TokenType.UNUSED,
    )
    num_special = len(SPECIAL_TOKENS)
    types = [control] * num_special + [normal] * (NUM_TOKENS - num_special)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(config.tokenizer_pre)
    writer.add_token_list([*TOKENS, *padding])
    writer.add_token_types([*types, *([unused] * len(padding))])
    writer.add_token_merges([f"{left} {right}" for left, right in MERGES])
    writer.add_bos_token_id(ENDOFTEXT_ID)
    writer.add_eos_token_id(config.eos_token_ids[0])
    writer.add_pad_token_id(ENDOFTEXT_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML_TEMPLATE)


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, values: npt.NDArray[np.float32], quant: str
) -> None:
    if values.ndim == 1 or values.shape[-1] % _BLOCK_COLUMNS or quant == "F32":
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType[quant]
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def write_gguf(folder: Path, config: TinyConfig, storage: TinyFormat, weights: Weights) -> Path:
    """Write `model.gguf`, or `model-00001-of-0000N.gguf` and its fellows; return the first."""
    tensors = _gguf_tensors(config, weights)
    path = folder / "model.gguf"
    per_file = math.ceil(len(tensors) / storage.split) if storage.split > 1 else 0
    writer = gguf.GGUFWriter(path, config.family, split_max_tensors=per_file)
    _add_hyper_parameters(writer, config)
    _add_tokenizer(writer, config)
    for name, values in tensors.items():
        _add_tensor(writer, name, values, storage.quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if storage.split == 1:
        return path
    return min(folder.glob("model-00001-of-*.gguf"))
