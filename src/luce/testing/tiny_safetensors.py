"""Writes a tiny model as a Hugging Face folder: config, safetensors, tokenizer, defaults."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from luce.loaders.hparams import RopeScaling
from luce.testing.tiny_hybrid import single_experts
from luce.testing.tiny_tokenizer import (
    CHATML_TEMPLATE,
    ENDOFTEXT,
    ENDOFTEXT_ID,
    IM_END,
    tokenizer_json,
)
from luce.testing.tiny_weights import TinyConfig, TinyFormat, Weights

_MODEL_TYPES = {
    "qwen3moe": "qwen3_moe",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
}
_ARCHITECTURES = {
    "qwen3moe": "Qwen3MoeForCausalLM",
    "qwen35": "Qwen3_5ForCausalLM",
    "qwen35moe": "Qwen3_5MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_STORED_AS_IS = ("F32", "F16", "BF16")
_TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_MAX_SHARD_DIGITS = 5
_BLOCK_COLUMNS = 32


def _rope_keys(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "default"}
    keys: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind != "linear":
        keys["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind == "llama3":
        keys["low_freq_factor"] = scaling.low_freq_factor
        keys["high_freq_factor"] = scaling.high_freq_factor
    if scaling.kind == "yarn":
        keys["beta_fast"] = scaling.beta_fast
        keys["beta_slow"] = scaling.beta_slow
        if scaling.attention_factor is not None:
            keys["attention_factor"] = scaling.attention_factor
    return keys


def hf_config(config: TinyConfig, dtype: str = "float32") -> dict[str, Any]:
    """The model's config.json."""
    keys: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[config.family]],
        "model_type": _MODEL_TYPES.get(config.family, config.family),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tied,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": ENDOFTEXT_ID,
        "eos_token_id": config.eos_token_ids[0],
        "torch_dtype": dtype,
        "transformers_version": "5.24.0",
    }
    if config.family != "qwen2":
        keys["head_dim"] = config.head_dim
    if config.family == "llama":
        keys["attention_bias"] = False
        keys["mlp_bias"] = False
    if config.rope_form == "parameters":
        keys["rope_parameters"] = {
            "rope_theta": config.rope_theta,
            **_rope_keys(config.rope_scaling),
        }
    else:
        keys["rope_theta"] = config.rope_theta
        keys["rope_scaling"] = (
            _rope_keys(config.rope_scaling) if config.rope_scaling is not None else None
        )
    keys |= _linear_keys(config) | _mixture_keys(config)
    return _seeing(keys) if config.has_vision else keys


def _linear_keys(config: TinyConfig) -> dict[str, Any]:
    linear = config.linear
    if linear is None:
        return {}
    share = (config.rotary_dim or config.head_dim) / config.head_dim
    rope = {**_rope_keys(config.rope_scaling), "rope_theta": config.rope_theta}
    axes = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    return {
        "layer_types": list(linear.layer_types),
        "linear_num_key_heads": linear.num_key_heads,
        "linear_num_value_heads": linear.num_value_heads,
        "linear_key_head_dim": linear.key_head_dim,
        "linear_value_head_dim": linear.value_head_dim,
        "linear_conv_kernel_dim": linear.conv_kernel,
        "attn_output_gate": True,
        "mtp_num_hidden_layers": config.num_mtp_layers,
        "rope_parameters": {**rope, **axes, "partial_rotary_factor": share},
    }


def _mixture_keys(config: TinyConfig) -> dict[str, Any]:
    experts = config.experts
    if experts is None:
        return {}
    keys: dict[str, Any] = {
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_per_token,
        "moe_intermediate_size": experts.size,
    }
    if experts.shared_size:
        return {**keys, "shared_expert_intermediate_size": experts.shared_size}
    return {**keys, "norm_topk_prob": experts.norm_weights}


def _seeing(keys: dict[str, Any]) -> dict[str, Any]:
    """The config of a model that also sees around that of its language model."""
    return {
        "architectures": [keys["architectures"][0].replace("CausalLM", "ConditionalGeneration")],
        "model_type": keys["model_type"].removesuffix("_text"),
        "text_config": keys,
        "vision_config": {"depth": 1},
        "image_token_id": 1,
        "tie_word_embeddings": keys["tie_word_embeddings"],
        "transformers_version": keys["transformers_version"],
    }


def _stored(values: npt.NDArray[np.float32], quant: str) -> tuple[str, bytes]:
    """Type name and bytes of a tensor; see `TinyFormat.quant`."""
    is_vector = values.ndim == 1 or 1 in values.shape  # a GGUF file has no dimension of 1
    if is_vector or values.shape[-1] % _BLOCK_COLUMNS or quant == "F32":
        return "F32", values.tobytes()
    kind = gguf.GGMLQuantizationType[quant]
    packed = gguf.quants.quantize(values, kind)
    if quant in _STORED_AS_IS:
        return quant, packed.tobytes()
    return "F32", gguf.quants.dequantize(packed, kind).astype(np.float32).tobytes()


def write_safetensors(path: Path, weights: Weights, quant: str) -> None:
    """Write tensors in the safetensors layout, bfloat16 included, which numpy has no type for."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks: list[bytes] = []
    offset = 0
    for name, values in weights.items():
        dtype, data = _stored(values, quant)
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def _write_weights(folder: Path, storage: TinyFormat, weights: Weights) -> None:
    if storage.split == 1:
        write_safetensors(folder / "model.safetensors", weights, storage.quant)
        return
    names = list(weights)
    per_file = math.ceil(len(names) / storage.split)
    groups = [names[start : start + per_file] for start in range(0, len(names), per_file)]
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        count = f"{len(groups):0{_MAX_SHARD_DIGITS}d}"
        file_name = f"model-{number:0{_MAX_SHARD_DIGITS}d}-of-{count}.safetensors"
        write_safetensors(
            folder / file_name, {name: weights[name] for name in group}, storage.quant
        )
        weight_map.update(dict.fromkeys(group, file_name))
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


def _folder_weights(config: TinyConfig, weights: Weights) -> Weights:
    """The tensors a folder has, in the form it is asked to have them."""
    stored: Weights = {}
    for name, values in weights.items():
        is_experts = name.endswith((".experts.gate_up_proj", ".experts.down_proj"))
        parts = {name: values}
        if is_experts and config.experts_as == "single":
            parts = single_experts(name, values)
        for each, tensor in parts.items():
            if config.has_vision and not each.startswith("model.visual."):
                each = each.replace("model.", "model.language_model.", 1)
            stored[each] = tensor
    return stored


def write_hf_folder(
    folder: Path, config: TinyConfig, storage: TinyFormat, weights: Weights
) -> Path:
    """Write the folder's files; return the folder."""
    dtype = _TORCH_NAMES.get(storage.quant, "float32")
    weights = _folder_weights(config, weights)
    _write_json(folder / "config.json", hf_config(config, dtype))
    _write_json(folder / "tokenizer.json", tokenizer_json(config.tokenizer_pre))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": ENDOFTEXT,
            "eos_token": IM_END,
            "pad_token": ENDOFTEXT,
            "add_bos_token": False,
            "chat_template": CHATML_TEMPLATE,
            "model_max_length": config.context_length,
        },
    )
    _write_json(
        folder / "generation_config.json",
        {
            "bos_token_id": ENDOFTEXT_ID,
            "eos_token_id": list(config.eos_token_ids),
            **config.generation,
        },
    )
    _write_weights(folder, storage, weights)
    return folder
