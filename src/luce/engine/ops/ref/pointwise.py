"""Token-wise operations in plain PyTorch: correct for every dtype and device."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from luce.engine.ops.kv_cache import KVCache, TypedCache
from luce.engine.ops.ref import kv_cache


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`ops.pointwise.RmsNorm`."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def rotate_half(x: torch.Tensor, rotary: torch.Tensor) -> None:
    """`ops.pointwise.Rotate` for pairs (i, i + D/2)."""
    left, right = x.chunk(2, dim=-1)
    _rotate(left, right, rotary)


def rotate_interleaved(x: torch.Tensor, rotary: torch.Tensor) -> None:
    """`ops.pointwise.Rotate` for pairs (2i, 2i + 1)."""
    _rotate(x[..., 0::2], x[..., 1::2], rotary)


def _rotate(left: torch.Tensor, right: torch.Tensor, rotary: torch.Tensor) -> None:
    cosine, sine = rotary.unbind(-1)
    rotated = left * cosine - right * sine
    right.copy_(right * cosine + left * sine)
    left.copy_(rotated)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`ops.pointwise.SiluAndMul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def store_kv(kv: torch.Tensor, cache: KVCache, slot_mapping: torch.Tensor) -> None:
    """`ops.pointwise.StoreKV`."""
    if isinstance(cache, TypedCache):
        kv_cache.store(kv, cache, slot_mapping)
        return
    cache.view(-1, kv.shape[1]).index_copy_(0, slot_mapping, kv)
