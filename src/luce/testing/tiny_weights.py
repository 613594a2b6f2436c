"""Configurations and random weights of tiny models, by Hugging Face parameter names.

Sizes are the smallest that still exercise grouped heads and `heads * head_dim != hidden`.
Norms and biases are random: at their usual initial values a test would prove nothing about them.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from luce.loaders.hparams import Architecture, Experts, LinearAttention, RopeScaling
from luce.testing.tiny_hybrid import (
    hybrid_values,
    linear_shapes,
    mixture_shapes,
    mlp_shapes,
    mtp_shapes,
)
from luce.testing.tiny_tokenizer import NUM_TOKENS

Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyConfig:
    """What a tiny model looks like.

    Attributes:
        vocab_size: rows of the embedding; more than the tokenizer has = padding rows.
        rope_scaling: llama3 is written as `rope_freqs.weight` into a GGUF file.
        rope_form: Hugging Face spelling of the rotary parameters in config.json:
            "parameters" (transformers 5) or "theta" (rope_theta and rope_scaling).
        eos_token_ids: end tokens in generation_config.json; the first is GGUF's.
        generation: further keys of generation_config.json.
        rotary_dim: leading numbers of a head that are rotated; 0 = all.
        linear: a hybrid's linear layers; head order and decay form are the container's own.
        experts: a mixture in place of the feed-forward blocks.
        experts_as: how a folder stores them: each matrix alone, or all in one tensor.
        num_mtp_layers: 0 or 1 drafting layer behind the others.
        has_vision: the folder is that of a model that also sees.
    """

    family: Architecture
    vocab_size: int = NUM_TOKENS
    hidden_size: int = 64
    intermediate_size: int = 160
    num_layers: int = 3
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1e4
    rope_scaling: RopeScaling | None = None
    rope_form: Literal["parameters", "theta"] = "parameters"
    context_length: int = 512
    tied: bool = True
    eos_token_ids: tuple[int, ...] = (2, 0)
    generation: dict[str, float | bool] = field(default_factory=dict)
    rotary_dim: int = 0
    linear: LinearAttention | None = None
    experts: Experts | None = None
    experts_as: Literal["single", "fused"] = "fused"
    num_mtp_layers: int = 0
    has_vision: bool = False

    @property
    def tokenizer_pre(self) -> str:
        """The vocabulary's split, in GGUF's spelling."""
        return "smollm" if self.family == "llama" else "qwen2"


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyFormat:
    """How a tiny model is stored.

    Attributes:
        container: "gguf" (one file) or "safetensors" (a Hugging Face folder).
        quant: type of the matrices. GGUF: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 or MXFP4.
            safetensors: F32, F16 and BF16 are stored as such; any other type stores, as F32,
            what the quantised GGUF file would dequantise to.
        split: number of files.
    """

    container: Literal["gguf", "safetensors"] = "gguf"
    quant: str = "F32"
    split: int = 1


def weight_shapes(config: TinyConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter by its Hugging Face name, torch order."""
    hidden, linear = config.hidden_size, config.linear
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        if linear is not None and linear.layer_types[layer] == "linear_attention":
            mixer = linear_shapes(linear, hidden)
        else:
            mixer = _attention_shapes(config)
        block = _block_shapes(config, mixer)
        shapes.update({f"model.layers.{layer}.{name}": shape for name, shape in block.items()})
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    if config.num_mtp_layers:
        shapes |= mtp_shapes(hidden, _block_shapes(config, _attention_shapes(config)))
    if config.has_vision:
        shapes["model.visual.patch_embed.proj.weight"] = (hidden, 3, 2, 4, 4)
    return shapes


def _block_shapes(
    config: TinyConfig, mixer: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    if config.experts is None:
        mlp = mlp_shapes("mlp", config.intermediate_size, hidden)
    else:
        mlp = mixture_shapes(config.experts, hidden)
    return {
        "input_layernorm.weight": (hidden,),
        **mixer,
        "post_attention_layernorm.weight": (hidden,),
        **mlp,
    }


def _attention_shapes(config: TinyConfig) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    out_columns = config.num_heads * config.head_dim
    # A hybrid's queries come with as many gates.
    q_rows = out_columns * (1 if config.linear is None else 2)
    kv_rows = config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (q_rows, hidden),
        "self_attn.k_proj.weight": (kv_rows, hidden),
        "self_attn.v_proj.weight": (kv_rows, hidden),
        "self_attn.o_proj.weight": (hidden, out_columns),
    }
    if config.family == "qwen2":
        shapes["self_attn.q_proj.bias"] = (q_rows,)
        shapes["self_attn.k_proj.bias"] = (kv_rows,)
        shapes["self_attn.v_proj.bias"] = (kv_rows,)
    if config.family not in ("llama", "qwen2"):
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def random_weights(config: TinyConfig, seed: int) -> Weights:
    """Random float32 parameters; each depends on the seed and its own name only.

    Matrices are three times the usual initial 0.02, which gives logits spread enough to rank.
    """
    weights: Weights = {}
    for name, shape in weight_shapes(config).items():
        generator = np.random.default_rng((seed, zlib.crc32(name.encode())))
        values = generator.standard_normal(shape)
        special = hybrid_values(name, values, offset_norms=config.linear is not None)
        if special is not None:
            values = special
        elif len(shape) > 1:
            values *= 0.06
        elif name.endswith("norm.weight"):
            values = 1.0 + 0.1 * values
        else:
            values *= 0.1
        weights[name] = values.astype(np.float32)
    return weights


def llama3_factors(config: TinyConfig, scaling: RopeScaling) -> npt.NDArray[np.float32]:
    """Divisors of the rotary frequencies under Llama 3.1's rule, float32 [head_dim / 2].

    Source: the Llama 3.1 reference: wavelengths shorter than original / high are kept, longer
    than original / low divided by `factor`, between them interpolated.
    """
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    wavelengths = 2 * math.pi * config.rope_theta**exponents
    turns = scaling.original_context / wavelengths
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / scaling.factor + smooth)).astype(np.float32)
