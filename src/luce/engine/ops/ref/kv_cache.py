"""Typed caches the plain way: encode and scatter, gather and decode."""

from __future__ import annotations

import torch

from luce.engine.ops.kv_cache import CachePart, KVCache, TypedCache
from luce.kv.spec import KV_GROUP, KVType


def encode(
    kind: KVType, numbers: torch.Tensor, like: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[..., D] → data [..., W] and scales [..., D/32]; `like` is the type of plain numbers."""
    if not kind.startswith("q"):
        return numbers.to(like), None
    groups = _split(numbers.float(), -1, KV_GROUP)
    if kind == "q8_0":
        scales = (groups.abs().amax(-1) / 127).half()
        codes = (groups * _inverse(scales)).round().clamp(-127, 127)
        return codes.to(torch.int8).flatten(-2), scales
    lowest, highest = groups.amin(-1), groups.amax(-1)
    scales = (torch.where(highest > -lowest, highest, lowest) / -8).half()
    codes = (groups * _inverse(scales) + 8.5).floor().clamp(0, 15).to(torch.uint8)
    low, high = _split(codes, 2, KV_GROUP // 2).unbind(-2)
    return (low | high << 4).flatten(-2), scales


def _split(numbers: torch.Tensor, *sizes: int) -> torch.Tensor:
    """The last dimension as two."""
    return numbers.reshape(*numbers.shape[:-1], *sizes)


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    wide = scales.float().unsqueeze(-1)
    return torch.where(wide == 0, 0.0, 1 / wide)


def decode(
    kind: KVType, data: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """The numbers [..., D], rounded once from float32."""
    if scales is None:
        return data.to(dtype)
    if kind == "q8_0":
        codes = _split(data, -1, KV_GROUP).float()
    else:
        halves = _split(data, -1, KV_GROUP // 2)
        codes = torch.cat([halves & 15, halves >> 4], dim=-1).float() - 8
    return (codes * scales.float().unsqueeze(-1)).flatten(-2).to(dtype)


def store(kv: torch.Tensor, cache: TypedCache, slot_mapping: torch.Tensor) -> None:
    """`ops.pointwise.StoreKV` for a typed cache."""
    block_tokens, num_heads = cache.keys.data.shape[1:3]
    blocks, offsets = slot_mapping // block_tokens, slot_mapping % block_tokens
    keys, values = kv.view(len(kv), 2, num_heads, -1).unbind(1)
    for part, numbers in ((cache.keys, keys), (cache.values, values)):
        data, scales = encode(part.type, numbers, part.data.dtype)
        part.data[blocks, offsets] = data
        if part.scales is not None and scales is not None:
            part.scales[blocks, offsets] = scales


def read_blocks(cache: KVCache, blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of these blocks, i64 [n]: [n, P, 2, K, D] in `dtype`."""
    if isinstance(cache, torch.Tensor):
        return cache[blocks]
    return torch.stack([_numbers(each, blocks, dtype) for each in (cache.keys, cache.values)], 2)


def _numbers(part: CachePart, blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    scales = None if part.scales is None else part.scales[blocks]
    return decode(part.type, part.data[blocks], scales, dtype)
