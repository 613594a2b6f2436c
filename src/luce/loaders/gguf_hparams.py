"""Hyper-parameters of a GGUF model. What is missing or unknown is refused by name.

Source: the GGUF specification's standard keys, and their defaults there.
"""

from __future__ import annotations

import math
from typing import get_args

from luce.errors import ModelFileError
from luce.loaders.gguf_hybrid import gguf_experts, gguf_linear_attention, num_mtp_layers
from luce.loaders.gguf_split import GgufModel
from luce.loaders.hparams import Architecture, HParams, LinearAttention, RopeScaling
from luce.loaders.keys import MIN_CONTEXT_LENGTH, MIN_ROPE_THETA, Keys

SUPPORTED_ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)

_DEFAULT_ROPE_THETA = 10_000.0
# Bookkeeping: the vocabulary is counted by the embedding's rows, the layout note is historical.
_HARMLESS = frozenset({"vocab_size", "tensor_data_layout", "rope.scaling.finetuned"})
# Keys of llama.cpp for features a plain Llama or Qwen has not; 0 means "not used".
_NO_EXPERTS = "mixtures of experts are not supported here"
_MUST_BE_ZERO = {
    "attention.clamp_kqv": "clamped attention is not supported",
    "attention.max_alibi_bias": "ALiBi is not supported",
    "attention.scale": "a custom attention scale is not supported",
    "logit_scale": "scaled logits are not supported",
    "embedding_scale": "scaled embeddings are not supported",
    "residual_scale": "scaled residuals are not supported",
    "attn_logit_softcapping": "soft-capped logits are not supported",
    "final_logit_softcapping": "soft-capped logits are not supported",
    "pooling_type": "embedding models are not supported",
    "rope.scaling.yarn_log_multiplier": "this kind of YaRN is not supported",
}


def gguf_architecture(model: GgufModel) -> Architecture:
    """The model's architecture.

    Raises:
        ModelFileError: it is missing or not supported; the message lists those that are.
    """
    name = Keys(model.path, model.metadata).text("general.architecture")
    if name not in SUPPORTED_ARCHITECTURES:
        raise ModelFileError(
            f"{model.path}: architecture {name!r:.80} is not supported (supported: "
            f"{', '.join(SUPPORTED_ARCHITECTURES)})"
        )
    return name


def _head_dim(keys: Keys, hidden_size: int, num_heads: int) -> int:
    if not keys.has("attention.key_length") and hidden_size % num_heads:
        keys.refuse(
            "attention.head_count", f"it does not divide the embedding length {hidden_size}"
        )
    head_dim = keys.count("attention.key_length", hidden_size // num_heads or 1)
    if keys.count("attention.value_length", head_dim) != head_dim:
        keys.refuse("attention.value_length", f"it differs from the key length {head_dim}")
    return head_dim


def _rotary_dim(keys: Keys, head_dim: int, linear: LinearAttention | None) -> int:
    rotary_dim = keys.count("rope.dimension_count", head_dim)
    if rotary_dim == head_dim:
        return 0
    if linear is None:
        keys.refuse("rope.dimension_count", f"it differs from the head dimension {head_dim}")
    if rotary_dim > head_dim or rotary_dim % 2:
        keys.refuse("rope.dimension_count", f"it must be even, and at most {head_dim}")
    return rotary_dim


def _num_kv_heads(keys: Keys, num_heads: int) -> int:
    num_kv_heads = keys.layer_count("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        keys.refuse("attention.head_count_kv", f"it does not divide the head count {num_heads}")
    return num_kv_heads


def _linear_factor(keys: Keys) -> float:
    """The divisor of the frequencies, under its present or its old name."""
    old = keys.number("rope.scale_linear", 1.0)
    return keys.number("rope.scaling.factor", old)


def _yarn(keys: Keys, context_length: int) -> RopeScaling:
    keys.only("rope.scaling.yarn_ext_factor", (1.0, -1.0), "this kind of YaRN is not supported")
    factor = keys.number("rope.scaling.factor")
    # In GGUF this multiplies YaRN's own magnitude; `RopeScaling` holds the whole.
    magnitude = keys.number(
        "rope.scaling.attn_factor", keys.number("rope.scaling.yarn_attn_factor", 1.0)
    )
    own = 1.0 + 0.1 * math.log(factor) if factor > 1.0 else 1.0
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_context=keys.count("rope.scaling.original_context_length", context_length),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=None if magnitude == 1.0 else magnitude * own,
    )


def _rope_scaling(keys: Keys, context_length: int, has_factors: bool) -> RopeScaling | None:
    kind = keys.text("rope.scaling.type", "linear" if _linear_factor(keys) != 1.0 else "none")
    if kind not in ("none", "linear", "yarn"):
        keys.refuse("rope.scaling.type", "supported are none, linear and yarn")
    if kind == "yarn":
        scaling: RopeScaling | None = _yarn(keys, context_length)
    elif kind == "linear" and _linear_factor(keys) != 1.0:
        scaling = RopeScaling(kind="linear", factor=_linear_factor(keys))
    else:
        scaling = None
    if keys.has("rope.scaling.original_context_length"):
        keys.count("rope.scaling.original_context_length")
    if scaling is not None and has_factors:
        raise ModelFileError(
            f"{keys.source}: has both rope_freqs.weight and rope scaling {kind!r}; one of them "
            "is expected"
        )
    return scaling


def _refuse_features(keys: Keys, context_length: int) -> None:
    """Refuse what would change the maths; experts of a mixture were asked for before."""
    for key, problem in _MUST_BE_ZERO.items():
        keys.only(key, (0, 0.0), problem)
    keys.only("attention.causal", (True,), "bidirectional attention is not supported")
    keys.only("use_parallel_residual", (False,), "parallel residuals are not supported")
    # A window no shorter than the context hides nothing.
    window = keys.count("attention.sliding_window", default=0, minimum=0)
    if 0 < window < context_length:
        keys.refuse("attention.sliding_window", "sliding windows are not supported")


def _embedding_rows(model: GgufModel) -> int:
    name = "token_embd.weight"
    if name not in model.tensors:
        raise ModelFileError(f"{model.path}: tensor {name!r} is missing")
    shape = model.tensors.meta(name).shape
    num_tokens = model.metadata.length("tokenizer.ggml.tokens") or 0
    if len(shape) != 2 or shape[0] < num_tokens:
        raise ModelFileError(
            f"{model.path}: tensor {name!r} is {list(shape)}, but needs a row for each of "
            f"{num_tokens} tokens"
        )
    return shape[0]


def gguf_hparams(model: GgufModel) -> HParams:
    """The hyper-parameters of an opened GGUF model.

    Llama 3.1's frequency factors stay in the tensor `rope_freqs.weight`.

    Raises:
        ModelFileError: one is missing, unknown or not supported.
    """
    architecture = gguf_architecture(model)
    keys = Keys(model.path, model.metadata, f"{architecture}.")
    hidden_size = keys.count("embedding_length")
    num_heads = keys.layer_count("attention.head_count")
    context_length = keys.count("context_length", minimum=MIN_CONTEXT_LENGTH)
    num_mtp = num_mtp_layers(keys)
    num_layers = keys.count("block_count") - num_mtp
    is_hybrid = architecture in ("qwen35", "qwen35moe")
    linear = gguf_linear_attention(keys, num_layers) if is_hybrid else None
    head_dim = _head_dim(keys, hidden_size, num_heads)
    experts = None
    if architecture in ("qwen3moe", "qwen35moe"):
        experts = gguf_experts(keys, has_shared=is_hybrid)
    found = HParams(
        architecture=architecture,
        vocab_size=_embedding_rows(model),
        hidden_size=hidden_size,
        intermediate_size=keys.layer_count(
            "feed_forward_length", None if experts is None else experts.size
        ),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(keys, num_heads),
        head_dim=head_dim,
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", _DEFAULT_ROPE_THETA, above=MIN_ROPE_THETA),
        rope_scaling=_rope_scaling(keys, context_length, "rope_freqs.weight" in model.tensors),
        rope_layout="interleaved" if architecture == "llama" else "half",
        context_length=context_length,
        tie_word_embeddings="output.weight" not in model.tensors,
        attention_bias=architecture == "qwen2",
        qk_norm=architecture not in ("llama", "qwen2"),
        rotary_dim=_rotary_dim(keys, head_dim, linear),
        gated_attention=is_hybrid,
        linear_attention=linear,
        experts=experts,
        num_mtp_layers=num_mtp,
    )
    if found.head_dim % 2:
        raise ModelFileError(f"{model.path}: the head dimension {found.head_dim} is odd")
    if experts is None:
        keys.only("expert_count", (0,), _NO_EXPERTS)
        keys.only("expert_used_count", (0,), _NO_EXPERTS)
    _refuse_features(keys, context_length)
    keys.refuse_unknown(_HARMLESS)
    return found
