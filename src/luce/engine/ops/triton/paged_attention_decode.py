"""Attention of one query a sequence over its paged context, split over the context.

A context is cut into chunks of a fixed number of tokens, and each chunk gives a partial result:
the largest score, the sum of weights, the weighted values. A second kernel folds a row's chunks
in their order. Neither the cut nor the order depends on what else is in the batch, so a row's
result does not either; only the number of programs that share a row's chunks does.

Source: Dao et al., "Flash-Decoding", 2023. The query heads of a KV head are rows of one product,
padded to the 16 that a matrix instruction takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.triton.numeric import LAUNCH, dot, power_of_two, wait_for_inputs

CHUNK_TOKENS = 256
"""Tokens of a partial result. Fewer: more programs for few rows, more partials to write."""
_TILE = 128
_WARPS = 4
_STAGES = 2
_FOLD = 8
_MIN_GROUP = 16
_LOG2_E = 1.4426950408889634
# Enough programs to fill a large GPU several times over.
_WANTED_PROGRAMS = 4096


@triton.jit
def _load_half(cache, places, dims, mask):
    return tl.load(cache + places[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _partial_kernel(
    qkv,
    cache,
    tables,
    rows,
    context_lens,
    partials,
    sums,
    scale,
    table_stride,
    token_stride,
    block_stride,
    slot_stride,
    kv_stride,
    head_stride,
    max_chunks,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (share, KV head, sequence): every share-th chunk of the context."""
    wait_for_inputs()
    head, lane = tl.program_id(1), tl.program_id(2)
    length = tl.load(context_lens + lane)
    table = tables + tl.load(rows + lane).to(tl.int64) * table_stride
    dims, members = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_G)
    real = (members < G)[:, None] & (dims < D)[None, :]
    heads = head * G + members
    q = tl.load(
        qkv + lane.to(tl.int64) * token_stride + heads[:, None] * D + dims[None, :],
        mask=real,
        other=0.0,
    )
    for chunk in range(tl.program_id(0), tl.cdiv(length, CHUNK), tl.num_programs(0)):
        top = tl.full((BLOCK_G,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_G,), tl.float32)
        values = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
        for first in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, length), TILE):
            positions = first + tl.arange(0, TILE)
            seen = positions < length
            blocks = tl.load(table + positions // P, mask=seen, other=0).to(tl.int64)
            places = blocks * block_stride + (positions % P) * slot_stride + head * head_stride
            inside = seen[:, None] & (dims < D)[None, :]
            k = _load_half(cache, places, dims, inside)
            v = _load_half(cache, places + kv_stride, dims, inside)
            zero = tl.zeros((BLOCK_G, TILE), tl.float32)
            scores = dot(q, tl.trans(k), zero) * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - new_top[:, None])
            shrink = tl.exp2(top - new_top)
            total = total * shrink + tl.sum(weights, 1)
            values = dot(weights.to(v.dtype), v, values * shrink[:, None])
            top = new_top
        # One record a query head and chunk: D values, then the sums.
        records = (lane.to(tl.int64) * H + heads) * max_chunks + chunk
        tl.store(partials + records[:, None] * D + dims[None, :], values, mask=real)
        tl.store(sums + records * 2, top, mask=members < G)
        tl.store(sums + records * 2 + 1, total, mask=members < G)


@triton.jit
def _fold_kernel(
    partials,
    sums,
    context_lens,
    out,
    out_stride,
    max_chunks,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
    FOLD: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (query head, sequence): fold the chunks, FOLD at a time."""
    wait_for_inputs()
    head, lane = tl.program_id(0), tl.program_id(1)
    num_chunks = tl.cdiv(tl.load(context_lens + lane), CHUNK)
    dims = tl.arange(0, BLOCK_D)
    first_record = (lane.to(tl.int64) * tl.num_programs(0) + head) * max_chunks
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    values = tl.zeros((BLOCK_D,), tl.float32)
    for first in range(0, num_chunks, FOLD):
        chunks = first + tl.arange(0, FOLD)
        there = chunks < num_chunks
        records = first_record + chunks
        tops = tl.load(sums + records * 2, mask=there, other=float("-inf"))
        totals = tl.load(sums + records * 2 + 1, mask=there, other=0.0)
        parts = tl.load(
            partials + records[:, None] * D + dims[None, :],
            mask=there[:, None] & (dims < D)[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(tops, 0))
        shares = tl.exp2(tops - new_top)
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(totals * shares, 0)
        values = values * shrink + tl.sum(parts * shares[:, None], 0)
        top = new_top
    target = out + lane.to(tl.int64) * out_stride + head * D + dims
    tl.store(target, (values / total).to(out.dtype.element_ty), mask=dims < D)


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """Where partial results go.

    Attributes:
        partials: f32 [lanes, H, chunks, D].
        sums: f32 [lanes, H, chunks, 2]: largest score and sum of weights.
    """

    partials: torch.Tensor
    sums: torch.Tensor

    @classmethod
    def make(
        cls, heads: HeadShape, lanes: int, max_ctx: int, device: torch.device
    ) -> DecodeScratch:
        """Room for `lanes` sequences of up to `max_ctx` tokens."""
        shape = (lanes, heads.num_heads, triton.cdiv(max_ctx, CHUNK_TOKENS))
        return cls(
            partials=torch.empty(*shape, heads.head_dim, device=device, dtype=torch.float32),
            sums=torch.empty(*shape, 2, device=device, dtype=torch.float32),
        )


def shares_for(lanes: int, heads: HeadShape, max_chunks: int) -> int:
    """Programs that share the chunks of a sequence and KV head; results do not depend on it."""
    wanted = _WANTED_PROGRAMS // (lanes * heads.num_kv_heads)
    return min(max_chunks, max(4, wanted))


def decode_attention(
    qkv: torch.Tensor,
    cache: torch.Tensor,
    tensors: AttentionTensors,
    heads: HeadShape,
    scratch: DecodeScratch,
    out: torch.Tensor,
) -> None:
    """Attention of the first `tensors.num_decode` tokens, each the last of its sequence.

    Args:
        qkv: [T, H + 2K, D], contiguous; keys and values are in the cache already.
        cache: [N, P, 2, K, D], of any strides but the last one's.
        tensors: tables, rows and lengths.
        heads: geometry.
        scratch: for at least so many lanes and such contexts.
        out: [T, H * D]; the first rows are written.
    """
    lanes, dim = tensors.num_decode, heads.head_dim
    max_chunks = scratch.partials.shape[2]
    grid = (shares_for(lanes, heads, max_chunks), heads.num_kv_heads, lanes)
    _partial_kernel[grid](
        qkv,
        cache,
        tensors.block_tables,
        tensors.rows,
        tensors.context_lens,
        scratch.partials,
        scratch.sums,
        _LOG2_E / dim**0.5,
        tensors.block_tables.stride(0),
        qkv.stride(0),
        *cache.stride()[:4],
        max_chunks,
        H=heads.num_heads,
        G=heads.group,
        D=dim,
        P=cache.shape[1],
        CHUNK=CHUNK_TOKENS,
        TILE=_TILE,
        BLOCK_G=power_of_two(heads.group, _MIN_GROUP),
        BLOCK_D=power_of_two(dim, 16),
        num_warps=_WARPS,
        num_stages=_STAGES,
        **LAUNCH,
    )
    _fold(tensors, heads, scratch, out)


def _fold(
    tensors: AttentionTensors, heads: HeadShape, scratch: DecodeScratch, out: torch.Tensor
) -> None:
    _fold_kernel[(heads.num_heads, tensors.num_decode)](
        scratch.partials,
        scratch.sums,
        tensors.context_lens,
        out,
        out.stride(0),
        scratch.partials.shape[2],
        D=heads.head_dim,
        CHUNK=CHUNK_TOKENS,
        FOLD=_FOLD,
        BLOCK_D=power_of_two(heads.head_dim, 16),
        num_warps=2,
        **LAUNCH,
    )
