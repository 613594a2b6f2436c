"""Gated DeltaNet: a linear attention whose state is a matrix per head.

With queries q and keys k of length 1 (q also divided by the root of the key size), values v, a
gate beta and a decay g, the state S [Dk, Dv] of a head goes from token to token by

    S <- exp(g) S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q

Queries, keys and values come from a causal depthwise convolution and silu; o leaves through an
RMS norm per head, times silu of a gate z.

Shapes: T tokens of the step, B sequences, Hk key heads, Hv value heads, Dk and Dv their sizes, W
the convolution's width, C = 2 Hk Dk + Hv Dv its channels, S state slots.
Source: Yang et al., "Gated Delta Networks" (2024), and transformers' Qwen3.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.linear import Linear


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Geometry of a layer.

    Attributes:
        num_key_heads: Hk.
        num_value_heads: Hv, a multiple of Hk.
        key_head_dim: Dk.
        value_head_dim: Dv.
        conv_width: W.
        is_tiled: value head h goes with key head h % Hk; otherwise with h // (Hv / Hk).
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_width: int
    is_tiled: bool

    @property
    def key_size(self) -> int:
        """Numbers of all keys of a token."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Numbers of all values of a token."""
        return self.num_value_heads * self.value_head_dim

    @property
    def channels(self) -> int:
        """C."""
        return 2 * self.key_size + self.value_size

    @property
    def projected_size(self) -> int:
        """Columns of what the layer reads of a token: channels, z, beta and decay."""
        return self.channels + self.value_size + 2 * self.num_value_heads

    @property
    def conv_elements(self) -> int:
        """Numbers of the convolution's state."""
        return (self.conv_width - 1) * self.channels

    @property
    def recurrent_elements(self) -> int:
        """Numbers of the recurrent state."""
        return self.num_value_heads * self.key_head_dim * self.value_head_dim


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """Parameters of a layer between its products.

    Attributes:
        conv: [C, W], oldest input first.
        decay: f32 [Hv]: -A; g = decay * softplus(a + dt_bias).
        dt_bias: f32 [Hv].
        norm: [Dv], of the output.
        eps: added to the norm's mean square.
    """

    conv: torch.Tensor
    decay: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class LayerState:
    """States of all slots in one layer, zero at the start of a sequence.

    Attributes:
        conv: [S, (W-1) * C]: the last inputs of the convolution, oldest first. Strided.
        recurrent: f32 [S, Hv * Dk * Dv]. Strided.
    """

    conv: torch.Tensor
    recurrent: torch.Tensor


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Whose states a step advances; sequences are contiguous runs of the step's tokens.

    Attributes:
        slots: of each sequence.
        query_starts: B+1 offsets of the sequences' tokens.
        tensors: the same on the device, where the step was laid out there; `slots` and
            `query_starts` may then be empty.
    """

    slots: tuple[int, ...]
    query_starts: tuple[int, ...]
    tensors: AttentionTensors | None = None


NO_STATES = StateBatch((), ())
"""Of a step of a model without such layers."""


class GatedDelta(Protocol):
    """What a layer does between its two products."""

    def __call__(
        self,
        projected: torch.Tensor,
        shape: DeltaShape,
        weights: DeltaWeights,
        state: LayerState,
        batch: StateBatch,
    ) -> torch.Tensor:
        """Convolve, recur, normalise and gate; advances the sequences' states.

        A token's result depends on its sequence's tokens alone: not on where a step ends, nor on
        the rest of the batch. The reference's not by a bit, where heads have whole groups of 32
        numbers; chunked ones round differently.

        Args:
            projected: [T, C + Hv*Dv + 2*Hv]: queries | keys | values, z, beta's logits, a.
            shape: geometry.
            weights: parameters.
            state: overwritten at the sequences' slots.
            batch: whose tokens these are.

        Returns:
            [T, Hv * Dv].
        """


@runtime_checkable
class AddsProduct(Protocol):
    """A `GatedDelta` that leaves its results as the product behind it wants them."""

    def add_product(
        self,
        hidden: torch.Tensor,
        projected: torch.Tensor,
        weights: tuple[DeltaShape, DeltaWeights],
        states: tuple[LayerState, StateBatch],
        output: Linear,
    ) -> torch.Tensor:
        """hidden + output(the operation), [T, hidden]; `hidden` may be overwritten."""
