"""Typed hyper-parameters of a decoder-only transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["llama", "qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe"]
RopeLayout = Literal["half", "interleaved"]
LayerType = Literal["full_attention", "linear_attention"]
HeadOrder = Literal["grouped", "tiled"]


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
class LinearAttention:
    """Gated DeltaNet layers of a hybrid, and where they stand among those of full attention.

    Attributes:
        layer_types: of each layer.
        num_key_heads: heads of queries and keys.
        num_value_heads: heads of values; a multiple of `num_key_heads`.
        key_head_dim: numbers of a key.
        value_head_dim: numbers of a value.
        conv_kernel: inputs the causal convolution sums.
        head_order: which key head a value head goes with. "grouped": neighbours share one, value
            head // ratio. "tiled", in GGUF files: value head % number of key heads.
        decay_is_log: the decay is stored as log(A); otherwise, in GGUF files, as -A.
    """

    layer_types: tuple[LayerType, ...]
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    head_order: HeadOrder
    decay_is_log: bool

    @property
    def num_layers(self) -> int:
        """Linear layers."""
        return self.layer_types.count("linear_attention")

    @property
    def key_size(self) -> int:
        """Numbers of all heads' keys."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Numbers of all heads' values."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values: what the convolution runs over."""
        return 2 * self.key_size + self.value_size


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of each feed-forward block.

    Attributes:
        num_experts: E.
        num_per_token: experts a token is sent to.
        size: rows of one expert's gate.
        shared_size: likewise of the expert that sees every token; 0 = there is none.
        norm_weights: the chosen experts' weights are scaled to sum to 1.
    """

    num_experts: int
    num_per_token: int
    size: int
    shared_size: int
    norm_weights: bool


@dataclass(frozen=True, slots=True)
class HParams:
    """Hyper-parameters, complete: a missing or unknown one was a `ModelFileError` already.

    Names are Hugging Face's. `rope_layout` says how the checkpoint's q/k rows are laid out:
    "interleaved" for GGUF files of the llama family (rows permuted by the converter), "half"
    for all others.
    """

    architecture: Architecture
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
    rotary_dim: int = 0
    """Leading numbers of a head that are rotated; 0: all."""
    gated_attention: bool = False
    """Rows of each query head are followed by as many of a gate on its output."""
    norm_is_offset: bool = False
    """Norm weights are stored as w where 1 + w is meant (not that of linear attention)."""
    linear_attention: LinearAttention | None = None
    experts: Experts | None = None
    num_mtp_layers: int = 0
    """Blocks behind the last layer that only draft tokens; they are not loaded."""

    @property
    def rotated_dim(self) -> int:
        """Numbers of a head that are rotated."""
        return self.rotary_dim or self.head_dim

    @property
    def num_attention_layers(self) -> int:
        """Layers of full attention: those that keep keys and values."""
        linear = self.linear_attention
        return self.num_layers - (0 if linear is None else linear.num_layers)

    def layer_type(self, layer: int) -> LayerType:
        """What a layer mixes tokens by."""
        linear = self.linear_attention
        return "full_attention" if linear is None else linear.layer_types[layer]
