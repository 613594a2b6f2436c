"""Signatures of the operations that work token by token."""

from __future__ import annotations

from typing import Protocol

import torch

from luce.engine.ops.kv_cache import KVCache


class RmsNorm(Protocol):
    """Root-mean-square normalisation."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x * rsqrt(mean(x^2) + eps) over the last axis, in float32; cast; times `weight`.

        The cast to x's type comes before the multiplication, as in the reference
        implementations of Llama and Qwen (it matters for bfloat16).
        """


class Rotate(Protocol):
    """Rotary position embedding, in place."""

    def __call__(self, x: torch.Tensor, rotary: torch.Tensor) -> None:
        """Rotate every head of x [T, heads, D] by its token's angles.

        Args:
            x: a view is fine; overwritten.
            rotary: f32 [T, 1, D/2, 2]: cosine and sine.
        """


class SiluAndMul(Protocol):
    """The gate of a SwiGLU block."""

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2F] = gate | up → silu(gate) * up, [T, F]; the input may be overwritten."""


class StoreKV(Protocol):
    """Writes new keys and values into the cache."""

    def __call__(self, kv: torch.Tensor, cache: KVCache, slot_mapping: torch.Tensor) -> None:
        """Scatter kv [T, 2 * K * D] (keys | values) to flat positions of cache [N, P, 2, K, D].

        Args:
            kv: rows may be strided.
            cache: overwritten at the given positions; it may be a typed one.
            slot_mapping: i64 [T], block * P + offset; distinct, but for the null block's.
        """
