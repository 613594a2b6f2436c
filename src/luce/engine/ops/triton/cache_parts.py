"""Reading and writing keys or values of a cache in any type, to be inlined in attention.

Layouts: `luce.engine.ops.kv_cache`. Inside a block the memory is head by head, so that the
places of codes and scales follow from a few strides.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from luce.engine.ops.kv_cache import CachePart, KVCache, TypedCache
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs
from luce.kv.spec import KV_GROUP, KVType

PLAIN, EIGHT, FOUR = 0, 8, 4
_KINDS: dict[KVType, int] = {"q8_0": EIGHT, "q4_0": FOUR}
# 1.5 * 2^23: added to a float32 below 2^22 and taken away it leaves the nearest integer.
_TO_INTEGER = tl.constexpr(12582912.0)

PartArguments = tuple[torch.Tensor, torch.Tensor, int, int, int, int]


@triton.jit
def load_part(
    data, scales, blocks, slots, head, seen, dims, like,
    block_stride, slot_stride, head_stride, scale_stride,
    D: tl.constexpr, P: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
    KIND: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """A head's keys or values [TILE, BLOCK_D] in the type of `like`; 0 where nothing is.

    Args:
        blocks: i64 [TILE]; `slots` are the offsets in them.
        seen: tokens that are there; read only if MASKED.
    """
    mask = (dims < D)[None, :]
    if MASKED:
        mask = seen[:, None] & mask
    places = blocks * block_stride + slots * slot_stride + head * head_stride
    if KIND == 0:
        numbers = tl.load(data + places[:, None] + dims[None, :], mask=mask, other=0.0)
    else:
        if KIND == 8:
            codes = tl.load(data + places[:, None] + dims[None, :], mask=mask, other=0)
            codes = codes.to(tl.float32)
        else:
            byte = dims // 32 * 16 + dims % 16
            pairs = tl.load(data + places[:, None] + byte[None, :], mask=mask, other=0)
            shift = dims % 32 // 16 * 4
            codes = ((pairs.to(tl.int32) >> shift[None, :]) & 15).to(tl.float32) - 8.0
        groups = tl.arange(0, BLOCK_D // 32)
        there = (groups < D // 32)[None, :]
        if MASKED:
            there = seen[:, None] & there
        at = blocks * scale_stride + (head * P + slots) * (D // 32)
        scale = tl.load(scales + at[:, None] + groups[None, :], mask=there, other=0.0)
        parts = tl.reshape(codes, (TILE, BLOCK_D // 32, 32)) * scale.to(tl.float32)[:, :, None]
        numbers = tl.reshape(parts, (TILE, BLOCK_D))
    return numbers.to(like.dtype)


@triton.jit
def _inverse(scale):
    wide = scale.to(tl.float32)
    return tl.where(wide == 0.0, 0.0, 1.0 / tl.where(wide == 0.0, 1.0, wide))


@triton.jit
def _store_part(
    source, data, scales, block, slot, block_stride, slot_stride, head_stride, scale_stride,
    K: tl.constexpr, D: tl.constexpr, P: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_D: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Keys or values of one token, [K, D] from `source` on."""
    heads, dims = tl.arange(0, HEADS), tl.arange(0, BLOCK_D)
    mask = (heads < K)[:, None] & (dims < D)[None, :]
    x = tl.load(source + heads[:, None] * D + dims[None, :], mask=mask, other=0.0)
    place = data + block * block_stride + slot * slot_stride + heads[:, None] * head_stride
    if KIND == 0:
        tl.store(place + dims[None, :], x.to(data.dtype.element_ty), mask=mask)
    else:
        x = tl.reshape(x.to(tl.float32), (HEADS, BLOCK_D // 32, 32))
        if KIND == 8:
            scale = (tl.max(tl.abs(x), 2) * (1.0 / 127.0)).to(tl.float16)
            codes = x * _inverse(scale)[:, :, None]
            codes = tl.minimum(tl.maximum((codes + _TO_INTEGER) - _TO_INTEGER, -127.0), 127.0)
            codes = tl.reshape(codes, (HEADS, BLOCK_D)).to(tl.int8)
            tl.store(place + dims[None, :], codes, mask=mask)
        else:
            lowest, highest = tl.min(x, 2), tl.max(x, 2)
            scale = (tl.where(highest > -lowest, highest, lowest) * -0.125).to(tl.float16)
            codes = tl.floor(x * _inverse(scale)[:, :, None] + 8.5)
            codes = tl.minimum(tl.maximum(codes, 0.0), 15.0).to(tl.int32)
            codes = tl.reshape(codes, (HEADS, BLOCK_D // 32, 2, 16))
            low, high = tl.split(tl.permute(codes, (0, 1, 3, 2)))
            pairs = tl.reshape(low | (high << 4), (HEADS, BLOCK_D // 2)).to(tl.uint8)
            byte = tl.arange(0, BLOCK_D // 2)
            full = (heads < K)[:, None] & (byte < D // 2)[None, :]
            tl.store(place + byte[None, :], pairs, mask=full)
        groups = tl.arange(0, BLOCK_D // 32)
        at = scales + block * scale_stride + (heads[:, None] * P + slot) * (D // 32)
        there = (heads < K)[:, None] & (groups < D // 32)[None, :]
        tl.store(at + groups[None, :], scale, mask=there)


@direct
@triton.jit
def _store_kernel(
    packed, slots,
    keys, key_scales, key_block, key_slot, key_head, key_scale_block,
    values, value_scales, value_block, value_slot, value_head, value_scale_block,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
    HEADS: tl.constexpr, BLOCK_D: tl.constexpr,
    KEY_KIND: tl.constexpr, VALUE_KIND: tl.constexpr,
):  # fmt: skip
    """Program (token, keys or values)."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    where = tl.load(slots + token)
    block, slot = where // P, where % P
    source = packed + token * ((H + 2 * K) * D) + H * D
    if tl.program_id(1) == 0:
        _store_part(
            source, keys, key_scales, block, slot, key_block, key_slot, key_head, key_scale_block,
            K, D, P, HEADS, BLOCK_D, KEY_KIND,
        )  # fmt: skip
    else:
        _store_part(
            source + K * D, values, value_scales, block, slot,
            value_block, value_slot, value_head, value_scale_block,
            K, D, P, HEADS, BLOCK_D, VALUE_KIND,
        )  # fmt: skip


def store_typed(
    packed: torch.Tensor, num_heads: int, cache: TypedCache, slot_mapping: torch.Tensor
) -> None:
    """Write the keys and values of packed [T, (H + 2K) * D] to their slots, H being `num_heads`."""
    tokens, kv_heads = packed.shape[0], cache.keys.data.shape[2]
    dim = packed.shape[1] // (num_heads + 2 * kv_heads)
    _store_kernel[(tokens, 2)](
        packed,
        slot_mapping,
        *part_arguments(cache.keys),
        *part_arguments(cache.values),
        H=num_heads,
        K=kv_heads,
        D=dim,
        P=cache.keys.data.shape[1],
        HEADS=power_of_two(kv_heads),
        BLOCK_D=power_of_two(dim, 16),
        **kinds_of(cache),
        num_warps=4,
        **LAUNCH,
    )


def part_arguments(part: CachePart) -> PartArguments:
    """Data, scales and the strides of blocks, slots, heads and blocks of scales."""
    scales = part.data if part.scales is None else part.scales
    block, slot, head = part.data.stride()[:3]
    return part.data, scales, block, slot, head, scales.stride(0)


def cache_arguments(cache: KVCache) -> tuple[PartArguments, PartArguments]:
    """The `part_arguments` of keys and of values, whatever the cache is."""
    if isinstance(cache, TypedCache):
        return part_arguments(cache.keys), part_arguments(cache.values)
    keys, values = (CachePart("bf16", cache[:, :, part], None) for part in (0, 1))
    return part_arguments(keys), part_arguments(values)


def kinds_of(cache: KVCache) -> dict[str, int]:
    """How keys and values are stored, as the kernels' compile-time arguments."""
    if not isinstance(cache, TypedCache):
        return {"KEY_KIND": PLAIN, "VALUE_KIND": PLAIN}
    return {
        "KEY_KIND": _KINDS.get(cache.keys.type, PLAIN),
        "VALUE_KIND": _KINDS.get(cache.values.type, PLAIN),
    }


def tokens_of_block(cache: KVCache) -> int:
    """P."""
    return (cache.keys.data if isinstance(cache, TypedCache) else cache).shape[1]


assert KV_GROUP == 32, "the kernels count in groups of 32"
