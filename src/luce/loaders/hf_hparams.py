"""Hyper-parameters from a Hugging Face config.json. What is missing or unknown is refused by name.

Rotary parameters come in two spellings: `rope_theta` and `rope_scaling`, or, since
transformers 5, `rope_parameters`. Source: the configuration classes of transformers 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from luce.errors import ModelFileError
from luce.loaders.hf_hybrid import (
    HYBRID_HARMLESS,
    VISION_HARMLESS,
    hf_experts,
    hf_linear_attention,
    hf_rotary_dim,
)
from luce.loaders.hparams import Architecture, HParams, RopeScaling
from luce.loaders.keys import MIN_CONTEXT_LENGTH, MIN_ROPE_THETA, Keys

# What config.json calls a model, and its architecture in GGUF's spelling.
_MODEL_TYPES: dict[str, Architecture] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "qwen3_5": "qwen35",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_moe_text": "qwen35moe",
}
_CLASSES: dict[Architecture, tuple[str, ...]] = {
    "llama": ("LlamaForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
    "qwen3moe": ("Qwen3MoeForCausalLM",),
    "qwen35": ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
    "qwen35moe": ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
}
_HYBRIDS = ("qwen35", "qwen35moe")
_NO_PARTIAL = "partial rotary embeddings are not supported"
_DEFAULT_ROPE_THETA = 10_000.0
# Bookkeeping, training-only values and old generation defaults: they do not touch the maths.
# fmt: off
_HARMLESS = frozenset((
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "attention_dropout",
    "attn_implementation", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size",
    "eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "id2label", "initializer_range", "is_decoder", "is_llama_config",
    "keys_to_ignore_at_inference", "label2id", "length_penalty", "max_length",
    "max_window_layers", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "remove_invalid_values",
    "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id",
    "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
    "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "typical_p", "unsloth_fixed",
    "unsloth_version", "use_bfloat16", "use_cache",
))
# fmt: on
_MUST_BE: dict[str, tuple[tuple[Any, ...], str]] = {
    "hidden_act": (("silu", "swish"), "supported is silu"),
    "mlp_bias": ((False,), "biases in the feed-forward layers are not supported"),
    "attention_bias": ((False,), "this attention bias is not supported"),
    "is_encoder_decoder": ((False,), "encoder-decoder models are not supported"),
    "add_cross_attention": ((False,), "cross attention is not supported"),
    "rope_interleaved": ((False,), "interleaved rotary embeddings are not supported here"),
    "use_mrope": ((False,), "multi-axis rotary embeddings are not supported"),
    "pruned_heads": (({},), "pruned heads are not supported"),
}


def hf_architecture(config: Mapping[str, Any], source: Path) -> Architecture:
    """The model's architecture in GGUF's spelling.

    Raises:
        ModelFileError: it is missing or not supported; the message lists those that are.
    """
    name = Keys(source, config).text("model_type")
    if name not in _MODEL_TYPES:
        raise ModelFileError(
            f"{source}: model_type {name!r:.80} is not supported (supported: "
            f"{', '.join(_MODEL_TYPES)})"
        )
    return _MODEL_TYPES[name]


def text_keys(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says about the language model: a section of it, if it also sees."""
    section = config.get("text_config")
    return section if isinstance(section, dict) else config


def _yarn_attention_factor(keys: Keys, factor: float) -> float | None:
    """YaRN's magnitude where the file sets it, directly or by `mscale` over `mscale_all_dim`."""
    has_scales = keys.has("mscale") and keys.has("mscale_all_dim")
    if keys.has("attention_factor"):
        return keys.number("attention_factor")
    if not has_scales:
        return None
    grown = 0.1 * math.log(factor) if factor > 1.0 else 0.0
    return (1.0 + keys.number("mscale") * grown) / (1.0 + keys.number("mscale_all_dim") * grown)


def _scaling_of_kind(kind: str, keys: Keys, context_length: int) -> RopeScaling | None:
    if kind == "linear":
        return RopeScaling(kind="linear", factor=keys.number("factor"))
    if kind == "llama3":
        scaling = RopeScaling(
            kind="llama3",
            factor=keys.number("factor"),
            original_context=keys.count("original_max_position_embeddings"),
            low_freq_factor=keys.number("low_freq_factor"),
            high_freq_factor=keys.number("high_freq_factor"),
        )
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            keys.refuse("high_freq_factor", "it must be above low_freq_factor")
        return scaling
    if kind == "yarn":
        factor = keys.number("factor")
        keys.only("truncate", (True,), "YaRN without truncation is not supported")
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_context=keys.count("original_max_position_embeddings", context_length),
            beta_fast=keys.number("beta_fast", 32.0),
            beta_slow=keys.number("beta_slow", 1.0),
            attention_factor=_yarn_attention_factor(keys, factor),
        )
    if kind != "default":
        key = "rope_type" if keys.has("rope_type") else "type"
        keys.refuse(key, "supported are default, linear, llama3 and yarn")
    return None


def _section(keys: Keys, key: str) -> Keys | None:
    value = keys.optional_object(key)
    return None if value is None else Keys(f"{keys.source}: {key}", value)


def _rope(
    keys: Keys, architecture: Architecture, context_length: int
) -> tuple[float, RopeScaling | None, Keys | None]:
    """Base of the frequencies, their scaling, and the section that says so if there is one."""
    # The first Llama models came before the key; there its value was always this.
    default = _DEFAULT_ROPE_THETA if architecture == "llama" else None
    section = _section(keys, "rope_parameters")
    scaling = _section(keys, "rope_scaling")
    if section is not None and scaling is not None:
        keys.refuse("rope_scaling", "rope_parameters is there as well; one of them is expected")
    if section is not None and section.has("rope_theta"):
        if keys.has("rope_theta"):
            keys.number("rope_theta", above=MIN_ROPE_THETA)
        theta = section.number("rope_theta", above=MIN_ROPE_THETA)
    else:
        theta = keys.number("rope_theta", default, above=MIN_ROPE_THETA)
    section = section or scaling
    if section is None:
        return theta, None, None
    kind = section.text("rope_type", section.text("type", "default"))
    found = _scaling_of_kind(kind, section, context_length)
    harmless = {"type", "rope_type", "finetuned", "original_max_position_embeddings"}
    if architecture in _HYBRIDS:
        harmless |= {"partial_rotary_factor", *HYBRID_HARMLESS}
    else:
        section.only("partial_rotary_factor", (1,), _NO_PARTIAL)
    section.refuse_unknown(harmless)
    return theta, found, section


def _check_class(keys: Keys, architecture: Architecture) -> None:
    """Refuse heads that do not generate text."""
    classes = keys.texts("architectures") if keys.has("architectures") else []
    if classes and (len(classes) > 1 or classes[0] not in _CLASSES[architecture]):
        keys.refuse("architectures", f"supported is {' or '.join(_CLASSES[architecture])}")


def _refuse_features(keys: Keys, architecture: Architecture, context_length: int) -> None:
    for key, (allowed, problem) in _MUST_BE.items():
        if key == "hidden_act" and not keys.has(key):
            raise ModelFileError(f"{keys.source}: hidden_act is missing")
        keys.only(key, allowed, problem)
    _check_class(keys, architecture)
    if architecture not in _HYBRIDS:
        keys.only("partial_rotary_factor", (1,), _NO_PARTIAL)
    if architecture not in _HYBRIDS and keys.has("layer_types"):
        keys.only("layer_types", ("full_attention",), "supported is full_attention throughout")
    # Qwen files carry a window that is switched off; one as long as the context hides nothing.
    uses_window = keys.flag("use_sliding_window", architecture == "llama")
    if keys.has("sliding_window") and uses_window and keys.count("sliding_window") < context_length:
        keys.refuse("sliding_window", "sliding windows are not supported")


def _head_dim(keys: Keys, architecture: Architecture, hidden_size: int, num_heads: int) -> int:
    if architecture not in ("llama", "qwen2"):
        return keys.count("head_dim")
    if not keys.has("head_dim") and hidden_size % num_heads:
        keys.refuse("num_attention_heads", f"it does not divide hidden_size {hidden_size}")
    return keys.count("head_dim", hidden_size // num_heads or 1)


def _text_section(config: Mapping[str, Any], source: Path, architecture: Architecture) -> Keys:
    """The keys of the language model; what stands around them must be known to be harmless."""
    section = text_keys(config)
    keys = Keys(source if section is config else f"{source}: text_config", section)
    keys.optional_text("model_type")
    if section is not config:
        around = Keys(source, config)
        around.text("model_type")
        around.flag("tie_word_embeddings", False)
        _check_class(around, architecture)
        around.refuse_unknown(_HARMLESS | VISION_HARMLESS)
    return keys


def _is_tied(keys: Keys, config: Mapping[str, Any], source: Path) -> bool:
    """Whether embedding and output are one matrix; a model that also sees says so at the top."""
    inner = keys.flag("tie_word_embeddings", False)
    return Keys(source, config).flag("tie_word_embeddings", inner)


def hf_hparams(config: Mapping[str, Any], source: Path) -> HParams:
    """The hyper-parameters of a config.json.

    Args:
        config: its keys.
        source: its path, for messages.

    Raises:
        ModelFileError: one is missing, unknown or not supported.
    """
    architecture = hf_architecture(config, source)
    keys = _text_section(config, source, architecture)
    hidden_size = keys.count("hidden_size")
    num_heads = keys.count("num_attention_heads")
    default_kv = num_heads if architecture == "llama" else None
    num_kv_heads = keys.count("num_key_value_heads", default_kv)
    if num_heads % num_kv_heads:
        keys.refuse("num_key_value_heads", f"it does not divide the {num_heads} heads")
    head_dim = _head_dim(keys, architecture, hidden_size, num_heads)
    if head_dim % 2:
        raise ModelFileError(f"{source}: head_dim {head_dim} is odd")
    context_length = keys.count("max_position_embeddings", minimum=MIN_CONTEXT_LENGTH)
    rope_theta, rope_scaling, rope = _rope(keys, architecture, context_length)
    is_hybrid = architecture in _HYBRIDS
    num_layers = keys.count("num_hidden_layers")
    experts = None
    if architecture in ("qwen3moe", "qwen35moe"):
        experts = hf_experts(keys, has_shared=is_hybrid)
    found = HParams(
        architecture=architecture,
        vocab_size=keys.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.count("intermediate_size") if experts is None else experts.size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=keys.number("rms_norm_eps"),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        rope_layout="half",
        context_length=context_length,
        tie_word_embeddings=_is_tied(keys, config, source),
        attention_bias=architecture == "qwen2",
        qk_norm=architecture not in ("llama", "qwen2"),
        rotary_dim=hf_rotary_dim(keys, rope, head_dim) if is_hybrid else 0,
        gated_attention=is_hybrid,
        norm_is_offset=is_hybrid,
        linear_attention=hf_linear_attention(keys, num_layers) if is_hybrid else None,
        experts=experts,
        num_mtp_layers=keys.count("mtp_num_hidden_layers", default=0, minimum=0),
    )
    _refuse_features(keys, architecture, context_length)
    keys.refuse_unknown(_HARMLESS | HYBRID_HARMLESS)
    return found
