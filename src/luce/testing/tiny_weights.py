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

from luce.loaders.hparams import RopeScaling
from luce.testing.tiny_tokenizer import NUM_TOKENS

Family = Literal["llama", "qwen2", "qwen3"]
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
    """

    family: Family
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
    hidden, ffn = config.hidden_size, config.intermediate_size
    q_rows = config.num_heads * config.head_dim
    kv_rows = config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        block = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (q_rows, hidden),
            "self_attn.k_proj.weight": (kv_rows, hidden),
            "self_attn.v_proj.weight": (kv_rows, hidden),
            "self_attn.o_proj.weight": (hidden, q_rows),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (ffn, hidden),
            "mlp.up_proj.weight": (ffn, hidden),
            "mlp.down_proj.weight": (hidden, ffn),
        }
        if config.family == "qwen2":
            block["self_attn.q_proj.bias"] = (q_rows,)
            block["self_attn.k_proj.bias"] = (kv_rows,)
            block["self_attn.v_proj.bias"] = (kv_rows,)
        if config.family == "qwen3":
            block["self_attn.q_norm.weight"] = (config.head_dim,)
            block["self_attn.k_norm.weight"] = (config.head_dim,)
        shapes.update({f"model.layers.{layer}.{name}": shape for name, shape in block.items()})
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def random_weights(config: TinyConfig, seed: int) -> Weights:
    """Random float32 parameters; each depends on the seed and its own name only.

    Matrices are three times the usual initial 0.02, which gives logits spread enough to rank.
    """
    weights: Weights = {}
    for name, shape in weight_shapes(config).items():
        generator = np.random.default_rng((seed, zlib.crc32(name.encode())))
        values = generator.standard_normal(shape)
        if len(shape) > 1:
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
