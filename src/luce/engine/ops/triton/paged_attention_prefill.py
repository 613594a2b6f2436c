"""Causal attention of runs of tokens over their paged context: what came before, and themselves.

Source: Dao, "FlashAttention-2", 2023. One program takes a tile of one sequence's queries and one
query head. A row's result depends on its own queries and context alone: tiles of the context
begin at position 0 whatever the chunk, so a prompt gives the same in one piece or in many.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.triton.cache_parts import (
    cache_arguments,
    kinds_of,
    load_part,
    tokens_of_block,
)
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, dot, power_of_two, wait_for_inputs

# Queries and context tokens of a tile. The same for every chunk, so that every chunk is computed
# by the same instructions. Float32 takes four times the shared memory a narrow type's copy does.
_NARROW_TILE = (128, 32)
_WIDE_TILE = (32, 32)
_WARPS = 4
_STAGES = 4
# Wider heads: eight warps hold the sums of the same tile in registers.
_WIDE_HEAD = 128
_LOG2_E = 1.4426950408889634

PrefillAttention = Callable[
    [torch.Tensor, KVCache, AttentionTensors, HeadShape, torch.Tensor], None
]
"""`prefill_attention`, or a kernel in its place."""


@triton.jit
def _gather(scores, v, scale, top, total, values):
    """One tile more of the softmax: largest score, sum of weights, weighted values."""
    new_top = tl.maximum(top, tl.max(scores, 1))
    offset = -(new_top * scale)
    # Said as one operation, since nothing is left to the compiler to contract.
    scales = tl.zeros_like(scores) + scale
    weights = tl.exp2(tl.fma(scores, scales, tl.zeros_like(scores) + offset[:, None]))
    shrink = tl.exp2((top - new_top) * scale)
    total = total * shrink + tl.sum(weights, 1)
    return new_top, total, dot(weights.to(v.dtype), v, values * shrink[:, None])


@direct
@triton.jit(
    do_not_specialize=["first_sequence"],
    do_not_specialize_on_alignment=["rows", "context_lens", "query_starts"],
)
def _prefill_kernel(
    qkv,
    cached_keys,
    key_scales,
    key_block,
    key_slot,
    key_head,
    key_scale_block,
    cached_values,
    val_scales,
    val_block,
    val_slot,
    val_head,
    val_scale_block,
    tables,
    rows,
    context_lens,
    query_starts,
    out,
    scale,
    first_sequence,
    table_stride,
    token_stride,
    out_stride,
    G: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    QUERIES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    KEY_KIND: tl.constexpr,
    VALUE_KIND: tl.constexpr,
):
    """Program (query head, sequence, tile of queries); the last tiles, the longest, start first."""
    wait_for_inputs()
    head, sequence = tl.program_id(0), first_sequence + tl.program_id(1)
    tile = tl.num_programs(2) - 1 - tl.program_id(2)
    start = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - start
    if tile * QUERIES >= count:
        return
    length = tl.load(context_lens + sequence)
    table = tables + tl.load(rows + sequence).to(tl.int64) * table_stride
    index = tile * QUERIES + tl.arange(0, QUERIES)
    dims = tl.arange(0, BLOCK_D)
    real = (index < count)[:, None] & (dims < D)[None, :]
    tokens = (start + index).to(tl.int64)
    q = tl.load(
        qkv + tokens[:, None] * token_stride + head * D + dims[None, :], mask=real, other=0.0
    )
    positions = length - count + index
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    values = tl.zeros((QUERIES, BLOCK_D), tl.float32)
    # Context that all queries of the tile see needs no mask; then the rest.
    open_end = (length - count + tile * QUERIES + 1) // TILE * TILE
    end = min(length, length - count + (tile + 1) * QUERIES)
    for first in range(0, open_end, TILE):
        keys = first + tl.arange(0, TILE)
        blocks = tl.load(table + keys // P).to(tl.int64)
        slots = keys % P
        k = load_part(
            cached_keys, key_scales, blocks, slots, head // G, keys < end, dims, q,
            key_block, key_slot, key_head, key_scale_block,
            D, P, TILE, BLOCK_D, KEY_KIND, False,
        )  # fmt: skip
        v = load_part(
            cached_values, val_scales, blocks, slots, head // G, keys < end, dims, q,
            val_block, val_slot, val_head, val_scale_block,
            D, P, TILE, BLOCK_D, VALUE_KIND, False,
        )  # fmt: skip
        scores = dot(q, tl.trans(k), tl.zeros((QUERIES, TILE), tl.float32))
        top, total, values = _gather(scores, v, scale, top, total, values)
    for first in range(open_end, end, TILE):
        keys = first + tl.arange(0, TILE)
        blocks = tl.load(table + keys // P, mask=keys < end, other=0).to(tl.int64)
        slots = keys % P
        k = load_part(
            cached_keys, key_scales, blocks, slots, head // G, keys < end, dims, q,
            key_block, key_slot, key_head, key_scale_block,
            D, P, TILE, BLOCK_D, KEY_KIND, True,
        )  # fmt: skip
        v = load_part(
            cached_values, val_scales, blocks, slots, head // G, keys < end, dims, q,
            val_block, val_slot, val_head, val_scale_block,
            D, P, TILE, BLOCK_D, VALUE_KIND, True,
        )  # fmt: skip
        scores = dot(q, tl.trans(k), tl.zeros((QUERIES, TILE), tl.float32))
        scores = tl.where(keys[None, :] <= positions[:, None], scores, float("-inf"))
        top, total, values = _gather(scores, v, scale, top, total, values)
    target = out + tokens[:, None] * out_stride + head * D + dims[None, :]
    tl.store(target, (values / total[:, None]).to(out.dtype.element_ty), mask=real)


def prefill_attention(
    qkv: torch.Tensor,
    cache: KVCache,
    tensors: AttentionTensors,
    heads: HeadShape,
    out: torch.Tensor,
) -> None:
    """Attention of all sequences behind the first `tensors.num_decode`.

    Args:
        qkv: [T, H + 2K, D], contiguous; keys and values are in the cache already.
        cache: [N, P, 2, K, D], of any strides but the last one's; or a typed one.
        tensors: tables, rows, lengths and where each sequence's tokens start.
        heads: geometry.
        out: [T, H * D]; those sequences' rows are written.
    """
    dim = heads.head_dim
    wide = qkv.dtype == torch.float32
    queries, tile = _WIDE_TILE if wide else _NARROW_TILE
    num_sequences = tensors.rows.shape[0] - tensors.num_decode
    grid = (heads.num_heads, num_sequences, triton.cdiv(tensors.max_queries, queries))
    keys, values = cache_arguments(cache)
    _prefill_kernel[grid](
        qkv,
        *keys,
        *values,
        tensors.block_tables,
        tensors.rows,
        tensors.context_lens,
        tensors.query_starts,
        out,
        _LOG2_E / dim**0.5,
        tensors.num_decode,
        tensors.block_tables.stride(0),
        qkv.stride(0),
        out.stride(0),
        G=heads.group,
        D=dim,
        P=tokens_of_block(cache),
        QUERIES=queries,
        TILE=tile,
        BLOCK_D=power_of_two(dim, 16),
        **kinds_of(cache),
        num_warps=_WARPS if wide or dim <= _WIDE_HEAD else 2 * _WARPS,
        num_stages=2 if wide else _STAGES,
        # Fused or not, a tile with a mask and one without round otherwise: which tiles have one
        # depends on the chunk, and the result must not.
        enable_fp_fusion=False,
        **LAUNCH,
    )
