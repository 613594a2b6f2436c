"""Attention of one query a sequence over its paged context, split over the context.

A context is cut into chunks, and each chunk gives a partial result: the largest score, the sum of
weights, the weighted values. The program that is the last one done of a row's folds the chunks in
their order. Neither the cut nor the order depends on what else is in the batch, so a row's result
does not either; only the number of programs that share a row's chunks does.

Chunks of short contexts are single tiles. The newest token, which the kernel ahead may still be
writing, comes first in its chunk; of all others wide heads' first tile is read before that kernel
is done, and each one after while the one before is at work.

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
from luce.engine.ops.triton.attention_chunks import attended, folded, leave_chunk, load_tile
from luce.engine.ops.triton.cache_parts import (
    cache_arguments,
    kinds_of,
    tokens_of_block,
)
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs

CHUNK_TOKENS = 256
"""Tokens of a partial result. Fewer: more programs for few rows, more partials to write."""
SHORT_TOKENS = 512
"""Up to so many of a context it is a tile."""
_TILE_ELEMENTS = 128 * 128
"""Of a tile of keys; more would not stay in registers."""
_WARPS = 4
_NARROW = 128
"""Heads of more numbers are read ahead of their use, by twice the warps; for others, whose tiles
have more tokens, registers are too few.
"""
_STAGES = 2
_MIN_GROUP = 16
_LOG2_E = 1.4426950408889634
# Enough programs to fill a large GPU several times over.
_WANTED_PROGRAMS = 4096


@direct
@triton.jit(do_not_specialize_on_alignment=["lanes", "rows", "context_lens"])
def _partial_kernel(
    qkv, keys, key_scales, key_block, key_slot, key_head, key_scale_block,
    vals, val_scales, val_block, val_slot, val_head, val_scale_block,
    tables, lanes, rows, context_lens, partials, sums, arrivals, out,
    scale, table_stride, token_stride, out_stride, max_chunks,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr,
    TILE: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
    KEY_KIND: tl.constexpr, VALUE_KIND: tl.constexpr, ORDERED: tl.constexpr,
    SHORT: tl.constexpr, MEMBERS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Program (share, KV head, place in the order): every share-th chunk of a context."""
    head, place = tl.program_id(1), tl.program_id(2)
    # The step's lengths, rows and tables are older than some operation of PyTorch's in this step,
    # which no kernel overtakes, and so are all tokens of a context but the last.
    length = tl.load(context_lens + place)
    lane = place
    if ORDERED:
        lane = tl.load(lanes + place)
    size = tl.where(length <= SHORT, TILE, CHUNK)
    num_chunks = tl.cdiv(length, size)
    table = tables + tl.load(rows + place).to(tl.int64) * table_stride
    dims, members = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_G)
    real = (members < G)[:, None] & (dims < D)[None, :]
    heads = head * G + members
    part = tl.arange(0, TILE)
    some = tl.zeros((1,), qkv.dtype.element_ty)
    key_place = (keys, key_scales, key_block, key_slot, key_head, key_scale_block)
    value_place = (vals, val_scales, val_block, val_slot, val_head, val_scale_block)
    if AHEAD:
        following = tl.program_id(0) * size
        next_k, next_v = load_tile(
            table, key_place, value_place, following + part, following + part < length - 1,
            head, some, D, P, TILE, BLOCK_D, KEY_KIND, VALUE_KIND,
        )  # fmt: skip
    wait_for_inputs()
    if tl.program_id(0) >= num_chunks:
        return
    q = tl.load(
        qkv + lane.to(tl.int64) * token_stride + heads[:, None] * D + dims[None, :],
        mask=real,
        other=0.0,
    )
    newest = length - 1 + tl.arange(0, 1)
    new_k, new_v = load_tile(
        table, key_place, value_place, newest, newest >= 0, head, some,
        D, P, 1, BLOCK_D, KEY_KIND, VALUE_KIND,
    )  # fmt: skip
    score = tl.sum(q.to(tl.float32) * new_k.to(tl.float32), 1) * scale
    target = out + lane.to(tl.int64) * out_stride + heads[:, None] * D + dims[None, :]
    first_records = (lane.to(tl.int64) * H + heads) * max_chunks
    for chunk in range(tl.program_id(0), num_chunks, tl.num_programs(0)):
        stop = min(chunk * size + size, length)
        has_newest = stop == length
        top = tl.where(has_newest, score, float("-inf"))
        total = tl.zeros((BLOCK_G,), tl.float32) + tl.where(has_newest, 1.0, 0.0)
        values = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
        values += tl.where(has_newest, new_v.to(tl.float32), 0.0)
        for first in range(chunk * size, stop, TILE):
            seen = first + part < length - 1
            if AHEAD:
                k, v = next_k, next_v
                following = first + TILE
                if following >= stop:
                    following = (chunk + tl.num_programs(0)) * size
                if following < length:
                    next_k, next_v = load_tile(
                        table, key_place, value_place, following + part,
                        following + part < length - 1, head, some,
                        D, P, TILE, BLOCK_D, KEY_KIND, VALUE_KIND,
                    )  # fmt: skip
            else:
                k, v = load_tile(
                    table, key_place, value_place, first + part, seen, head, some,
                    D, P, TILE, BLOCK_D, KEY_KIND, VALUE_KIND,
                )  # fmt: skip
            top, total, values = attended(q, k, v, seen, scale, top, total, values, BLOCK_G, TILE)
        if num_chunks == 1:
            # The same number as folding the one chunk gives: nothing is to wait for.
            tl.store(target, (values / total[:, None]).to(out.dtype.element_ty), mask=real)
        else:
            leave_chunk(
                partials, sums, first_records + chunk, dims, members, top, total, values, G, D
            )
    if num_chunks == 1:
        return
    # All threads have written before one of them says so.
    tl.debug_barrier()
    arrival = arrivals + lane * tl.num_programs(1) + head
    last = min(tl.num_programs(0), num_chunks) - 1
    if tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == last:
        tl.store(arrival, 0)
        few = tl.arange(0, MEMBERS)
        first_record = (lane.to(tl.int64) * H + head * G) * max_chunks
        result = folded(
            partials, sums, first_record, num_chunks, max_chunks, dims, few, G, D, MEMBERS,
            BLOCK_D, 4,
        )  # fmt: skip
        lines = out + lane.to(tl.int64) * out_stride + (head * G + few)[:, None] * D
        there = (few < G)[:, None] & (dims < D)[None, :]
        tl.store(lines + dims[None, :], result.to(out.dtype.element_ty), mask=there)


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
        short = triton.cdiv(min(max_ctx, SHORT_TOKENS), tile_tokens(heads.head_dim))
        chunks = max(short, triton.cdiv(max_ctx, CHUNK_TOKENS))
        shape = (lanes, heads.num_heads, chunks)
        return cls(
            partials=torch.empty(*shape, heads.head_dim, device=device, dtype=torch.float32),
            sums=torch.empty(*shape, 2, device=device, dtype=torch.float32),
            arrivals=torch.zeros(lanes, heads.num_kv_heads, device=device, dtype=torch.int32),
        )


def tile_tokens(head_dim: int) -> int:
    """Tokens whose keys, and then values, are read at a time."""
    return _TILE_ELEMENTS // max(128, power_of_two(head_dim))


def shares_for(lanes: int, heads: HeadShape, max_chunks: int) -> int:
    """Programs that share the chunks of a sequence and KV head; results do not depend on it."""
    wanted = _WANTED_PROGRAMS // (lanes * heads.num_kv_heads)
    # Of a short context every chunk has a program of its own.
    return min(max_chunks, max(SHORT_TOKENS // tile_tokens(heads.head_dim), wanted))


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
        TILE=tile_tokens(dim),
        BLOCK_G=power_of_two(heads.group, _MIN_GROUP),
        BLOCK_D=block_d,
        **kinds_of(cache),
        ORDERED=tensors.order is not None,
        SHORT=SHORT_TOKENS,
        MEMBERS=power_of_two(heads.group),
        AHEAD=block_d > _NARROW,
        num_warps=_WARPS if block_d <= _NARROW else 2 * _WARPS,
        num_stages=_STAGES,
        **LAUNCH,
    )
