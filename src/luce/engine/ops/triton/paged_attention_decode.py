"""Attention of one query a sequence over its paged context, split over the context.

A context is cut into chunks of a fixed number of tokens, and each chunk gives a partial result:
the largest score, the sum of weights, the weighted values. The program that is the last one done
of a row's folds the chunks in their order. Neither the cut nor the order depends on what else is
in the batch, so a row's result does not either; only the number of programs that share a row's
chunks does.

Source: Dao et al., "Flash-Decoding", 2023. The query heads of a KV head are rows of one product,
padded to the 16 that a matrix instruction takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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

CHUNK_TOKENS = 256
"""Tokens of a partial result. Fewer: more programs for few rows, more partials to write."""
_TILE_ELEMENTS = 128 * 128
"""Of a tile of keys; more would not stay in registers."""
_WARPS = 4
_STAGES = 2
_MIN_GROUP = 16
_LOG2_E = 1.4426950408889634
# Enough programs to fill a large GPU several times over.
_WANTED_PROGRAMS = 4096


@triton.jit
def _folded(
    partials, sums, first_records, num_chunks, dims, members,
    G: tl.constexpr, D: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The chunks of a group of query heads in their order, [BLOCK_G, BLOCK_D]."""
    there = members < G
    real = there[:, None] & (dims < D)[None, :]
    top = tl.full((BLOCK_G,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_G,), tl.float32)
    values = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    for chunk in range(num_chunks):
        records = first_records + chunk
        # Past this multiprocessor's own cache: other ones wrote it.
        tops = tl.load(sums + records * 2, mask=there, other=0.0, cache_modifier=".cg")
        totals = tl.load(sums + records * 2 + 1, mask=there, other=1.0, cache_modifier=".cg")
        parts = tl.load(
            partials + records[:, None] * D + dims[None, :],
            mask=real,
            other=0.0,
            cache_modifier=".cg",
        )
        new_top = tl.maximum(top, tops)
        share, shrink = tl.exp2(tops - new_top), tl.exp2(top - new_top)
        total = total * shrink + totals * share
        values = values * shrink[:, None] + parts * share[:, None]
        top = new_top
    return values / total[:, None]


@direct
@triton.jit(do_not_specialize_on_alignment=["lanes", "rows", "context_lens"])
def _partial_kernel(
    qkv,
    keys,
    key_scales,
    key_block,
    key_slot,
    key_head,
    key_scale_block,
    vals,
    val_scales,
    val_block,
    val_slot,
    val_head,
    val_scale_block,
    tables,
    lanes,
    rows,
    context_lens,
    partials,
    sums,
    arrivals,
    out,
    scale,
    table_stride,
    token_stride,
    out_stride,
    max_chunks,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    KEY_KIND: tl.constexpr,
    VALUE_KIND: tl.constexpr,
    ORDERED: tl.constexpr,
):
    """Program (share, KV head, place in the order): every share-th chunk of a context."""
    wait_for_inputs()
    head, place = tl.program_id(1), tl.program_id(2)
    length = tl.load(context_lens + place)
    lane = place
    if ORDERED:
        lane = tl.load(lanes + place)
    num_chunks = tl.cdiv(length, CHUNK)
    if tl.program_id(0) >= num_chunks:
        return
    table = tables + tl.load(rows + place).to(tl.int64) * table_stride
    dims, members = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_G)
    real = (members < G)[:, None] & (dims < D)[None, :]
    heads = head * G + members
    q = tl.load(
        qkv + lane.to(tl.int64) * token_stride + heads[:, None] * D + dims[None, :],
        mask=real,
        other=0.0,
    )
    target = out + lane.to(tl.int64) * out_stride + heads[:, None] * D + dims[None, :]
    for chunk in range(tl.program_id(0), num_chunks, tl.num_programs(0)):
        top = tl.full((BLOCK_G,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_G,), tl.float32)
        values = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
        for first in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, length), TILE):
            positions = first + tl.arange(0, TILE)
            seen = positions < length
            blocks = tl.load(table + positions // P, mask=seen, other=0).to(tl.int64)
            slots = positions % P
            k = load_part(
                keys, key_scales, blocks, slots, head, seen, dims, q,
                key_block, key_slot, key_head, key_scale_block,
                D, P, TILE, BLOCK_D, KEY_KIND, True,
            )  # fmt: skip
            v = load_part(
                vals, val_scales, blocks, slots, head, seen, dims, q,
                val_block, val_slot, val_head, val_scale_block,
                D, P, TILE, BLOCK_D, VALUE_KIND, True,
            )  # fmt: skip
            zero = tl.zeros((BLOCK_G, TILE), tl.float32)
            scores = dot(q, tl.trans(k), zero) * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - new_top[:, None])
            shrink = tl.exp2(top - new_top)
            total = total * shrink + tl.sum(weights, 1)
            values = dot(weights.to(v.dtype), v, values * shrink[:, None])
            top = new_top
        if num_chunks == 1:
            # The same number as folding the one chunk gives: nothing is to wait for.
            tl.store(target, (values / total[:, None]).to(out.dtype.element_ty), mask=real)
        else:
            # One record a query head and chunk: D values, then the sums.
            records = (lane.to(tl.int64) * H + heads) * max_chunks + chunk
            tl.store(partials + records[:, None] * D + dims[None, :], values, mask=real)
            tl.store(sums + records * 2, top, mask=members < G)
            tl.store(sums + records * 2 + 1, total, mask=members < G)
    if num_chunks == 1:
        return
    # All threads have written before one of them says so.
    tl.debug_barrier()
    arrival = arrivals + lane * tl.num_programs(1) + head
    expected = min(tl.num_programs(0), num_chunks)
    if tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == expected - 1:
        tl.store(arrival, 0)
        folded = _folded(
            partials, sums, (lane.to(tl.int64) * H + heads) * max_chunks, num_chunks, dims,
            members, G, D, BLOCK_G, BLOCK_D,
        )  # fmt: skip
        tl.store(target, folded.to(out.dtype.element_ty), mask=real)


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """Where partial results go.

    Attributes:
        partials: f32 [lanes, H, chunks, D].
        sums: f32 [lanes, H, chunks, 2]: largest score and sum of weights.
        arrivals: i32 [lanes, K]: programs done; 0 between launches.
    """

    partials: torch.Tensor
    sums: torch.Tensor
    arrivals: torch.Tensor

    @classmethod
    def make(
        cls, heads: HeadShape, lanes: int, max_ctx: int, device: torch.device
    ) -> DecodeScratch:
        """Room for `lanes` sequences of up to `max_ctx` tokens."""
        shape = (lanes, heads.num_heads, triton.cdiv(max_ctx, CHUNK_TOKENS))
        return cls(
            partials=torch.empty(*shape, heads.head_dim, device=device, dtype=torch.float32),
            sums=torch.empty(*shape, 2, device=device, dtype=torch.float32),
            arrivals=torch.zeros(lanes, heads.num_kv_heads, device=device, dtype=torch.int32),
        )


def shares_for(lanes: int, heads: HeadShape, max_chunks: int) -> int:
    """Programs that share the chunks of a sequence and KV head; results do not depend on it."""
    wanted = _WANTED_PROGRAMS // (lanes * heads.num_kv_heads)
    return min(max_chunks, max(4, wanted))


class DecodeAttention(Protocol):
    """`decode_attention`, or what stands in for it."""

    def __call__(
        self,
        qkv: torch.Tensor,
        cache: KVCache,
        tensors: AttentionTensors,
        heads: HeadShape,
        scratch: DecodeScratch,
        out: torch.Tensor,
    ) -> None:
        """Attention of the first `tensors.num_decode` tokens."""


def decode_attention(
    qkv: torch.Tensor,
    cache: KVCache,
    tensors: AttentionTensors,
    heads: HeadShape,
    scratch: DecodeScratch,
    out: torch.Tensor,
) -> None:
    """Attention of the first `tensors.num_decode` tokens, each the last of its sequence.

    Args:
        qkv: [T, H + 2K, D], contiguous; keys and values are in the cache already.
        cache: [N, P, 2, K, D], of any strides but the last one's; or a typed one.
        tensors: tables, rows and lengths.
        heads: geometry.
        scratch: for at least so many lanes and such contexts.
        out: [T, H * D]; the first rows are written.
    """
    lanes, dim = tensors.num_decode, heads.head_dim
    max_chunks, block_d = scratch.partials.shape[2], power_of_two(dim, 16)
    grid = (shares_for(lanes, heads, max_chunks), heads.num_kv_heads, lanes)
    keys, values = cache_arguments(cache)
    order = [tensors.rows, tensors.rows, tensors.context_lens]
    if tensors.order is not None:
        order = list(tensors.order.unbind(0))
    _partial_kernel[grid](
        qkv,
        *keys,
        *values,
        tensors.block_tables,
        *order,
        scratch.partials,
        scratch.sums,
        scratch.arrivals,
        out,
        _LOG2_E / dim**0.5,
        tensors.block_tables.stride(0),
        qkv.stride(0),
        out.stride(0),
        max_chunks,
        H=heads.num_heads,
        G=heads.group,
        D=dim,
        P=tokens_of_block(cache),
        CHUNK=CHUNK_TOKENS,
        TILE=_TILE_ELEMENTS // max(128, block_d),
        BLOCK_G=power_of_two(heads.group, _MIN_GROUP),
        BLOCK_D=block_d,
        **kinds_of(cache),
        ORDERED=tensors.order is not None,
        num_warps=_WARPS,
        num_stages=_STAGES,
        **LAUNCH,
    )
