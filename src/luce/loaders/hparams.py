"""Typed hyper-parameters of a dense decoder-only transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeLayout = Literal["half", "interleaved"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of the rotary frequencies.

    kind "linear": divide frequencies by `factor`. kind "llama3": the wavelength-dependent rule
    of Llama 3.1 with its four numbers. kind "yarn": NTK-by-parts with its numbers.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None


@dataclass(frozen=True, slots=True)
class HParams:
    """Hyper-parameters, complete: a missing or unknown one was a `ModelFileError` already.

    Names are Hugging Face's. `rope_layout` says how the checkpoint's q/k rows are laid out:
    "interleaved" for GGUF files of the llama family (rows permuted by the converter), "half"
    for all others.
    """

    architecture: Literal["llama", "qwen2", "qwen3"]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    rope_layout: RopeLayout
    context_length: int
    tie_word_embeddings: bool
    attention_bias: bool
    """q, k and v projections have a bias."""
    qk_norm: bool
    """Per-head RMSNorm on q and k before rotary."""
