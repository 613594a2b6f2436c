"""Pieces of decode attention, to be inlined: tiles and chunks of a context, and folding those."""

from __future__ import annotations

import triton
import triton.language as tl

from luce.engine.ops.triton.cache_parts import load_part
from luce.engine.ops.triton.numeric import dot


@triton.jit
def load_tile(
    table, key_place, value_place, positions, seen, head, like, D: tl.constexpr, P: tl.constexpr,
    TILE: tl.constexpr, BLOCK_D: tl.constexpr, KEY_KIND: tl.constexpr, VALUE_KIND: tl.constexpr,
):  # fmt: skip
    """Keys and values of some positions of a context, [TILE, BLOCK_D]; 0 where not `seen`.

    Args:
        table: of the context's blocks.
        key_place: data, scales, and strides of blocks, slots, heads and scales.
        value_place: likewise.
    """
    dims = tl.arange(0, BLOCK_D)
    blocks = tl.load(table + positions // P, mask=seen, other=0).to(tl.int64)
    slots = positions % P
    k = load_part(
        key_place[0], key_place[1], blocks, slots, head, seen, dims, like,
        key_place[2], key_place[3], key_place[4], key_place[5],
        D, P, TILE, BLOCK_D, KEY_KIND, True,
    )  # fmt: skip
    v = load_part(
        value_place[0], value_place[1], blocks, slots, head, seen, dims, like,
        value_place[2], value_place[3], value_place[4], value_place[5],
        D, P, TILE, BLOCK_D, VALUE_KIND, True,
    )  # fmt: skip
    return k, v


@triton.jit
def folded(
    partials, sums, first_records, num_chunks, max_chunks, dims, members,
    G: tl.constexpr, D: tl.constexpr, MEMBERS: tl.constexpr, BLOCK_D: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The chunks of a group of query heads in their order, [MEMBERS, BLOCK_D]."""
    top = tl.full((MEMBERS,), float("-inf"), tl.float32)
    total = tl.zeros((MEMBERS,), tl.float32)
    values = tl.zeros((MEMBERS, BLOCK_D), tl.float32)
    real = (members < G)[:, None] & (dims < D)[None, :]
    for first in range(0, num_chunks, AT_ONCE):
        tops, totals, parts, new_top = (), (), (), top
        for index in tl.static_range(AT_ONCE):
            # Past this multiprocessor's own cache: other ones wrote it.
            is_there = first + index < num_chunks
            record = first_records + members * max_chunks + first + index
            one = tl.load(
                sums + record * 2, mask=is_there & (members < G), other=float("-inf"),
                cache_modifier=".cg",
            )  # fmt: skip
            one = tl.where(members < G, one, 0.0)
            count = tl.load(
                sums + record * 2 + 1, mask=is_there & (members < G), other=0.0,
                cache_modifier=".cg",
            )  # fmt: skip
            part = tl.load(
                partials + record[:, None] * D + dims[None, :], mask=is_there & real, other=0.0,
                cache_modifier=".cg",
            )  # fmt: skip
            tops, totals, parts = tops + (one,), totals + (count,), parts + (part,)  # type: ignore[assignment]  # noqa: RUF005
        for index in tl.static_range(AT_ONCE):
            new_top = tl.maximum(new_top, tops[index])
        shrink = tl.exp2(top - new_top)
        total, values = total * shrink, values * shrink[:, None]
        for index in tl.static_range(AT_ONCE):
            share = tl.exp2(tops[index] - new_top)
            total += totals[index] * share
            values += parts[index] * share[:, None]
        top = new_top
    return values / total[:, None]


@triton.jit
def attended(
    q, k, v, seen, scale, top, total, values, BLOCK_G: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Largest score, sum of weights and weighted values with those of a tile."""
    zero = tl.zeros((BLOCK_G, TILE), tl.float32)
    scores = dot(q, tl.trans(k), zero) * scale
    scores = tl.where(seen[None, :], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weights, 1)
    values = dot(weights.to(v.dtype), v, values * shrink[:, None])
    return new_top, total, values


@triton.jit
def leave_chunk(
    partials, sums, records, dims, members, top, total, values, G: tl.constexpr, D: tl.constexpr
):
    """One record a query head: D values, then the sums."""
    real = (members < G)[:, None] & (dims < D)[None, :]
    tl.store(partials + records[:, None] * D + dims[None, :], values, mask=real)
    tl.store(sums + records * 2, top, mask=members < G)
    tl.store(sums + records * 2 + 1, total, mask=members < G)
