"""Norm, rotation and cache write of queries, keys and values in one kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from luce.engine.ops.attention import HeadShape
from luce.engine.ops.kv_cache import KVCache, TypedCache
from luce.engine.ops.qkv import HeadNorms, Placing, TokenPlaces, UnnormedRows
from luce.engine.ops.triton.cache_parts import store_typed
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs
from luce.engine.ops.triton.rms_norm import FACTOR_WARPS, row_factor

# Heads of a program: few, so that one token spreads over the chip, or many for many tokens.
_FEW_HEADS, _MANY_HEADS = 4, 16
_MANY_TOKENS = 512
# Of programs that read a row of the product's input each, from so many tokens on.
_WIDE_HEADS, _SEVERAL_TOKENS = 8, 128


@triton.jit
def _norm_weights(query_weight, key_weight, index, is_query, inside):
    """Of one half of each head."""
    query = tl.load(query_weight + index[None, :], mask=inside & is_query, other=1.0)
    key = tl.load(key_weight + index[None, :], mask=inside & ~is_query, other=1.0)
    return tl.where(is_query, query, key)


@triton.jit
def _normed(half, scale, weights, is_value):
    """One half of each head, normalised; values stay as they are."""
    normal = (half.to(tl.float32) * scale).to(half.dtype) * weights
    return tl.where(is_value, half, normal)


@direct
@triton.jit
def _place_kernel(
    source, packed, query_weight, key_weight, rotary, slots, cache, inputs, eps, input_eps,
    block_stride, slot_stride, kv_stride, head_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    P: tl.constexpr,
    HAS_NORM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    STORES: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    GATED: tl.constexpr,
    SIZE_IN: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """Program (token, run of heads): heads are tiles of two halves that are rotated together.

    GATED: each query of `source` is followed by its gate, which is left out of `packed`.
    SIZE_IN: not 0 if rows of `inputs` of this size were multiplied without their norm's factor.
    """
    token = tl.program_id(0).to(tl.int64)
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, HALF)
    inside = (heads < H + 2 * K) & (pair < D // 2)[None, :]
    is_query, is_value = heads < H, heads >= H + K
    # Numbers behind the first R are not rotated; they are taken two by two all the same.
    if INTERLEAVED:
        left_index, right_index = pair * 2, pair * 2 + 1
    else:
        left_index = tl.where(pair < R // 2, pair, pair + R // 2)
        right_index = left_index + tl.where(pair < R // 2, R // 2, (D - R) // 2)
    if HAS_NORM:
        # On their way before the kernel ahead is done.
        left_weights = _norm_weights(query_weight, key_weight, left_index, is_query, inside)
        right_weights = _norm_weights(query_weight, key_weight, right_index, is_query, inside)
    wait_for_inputs()
    line = packed + (token * (H + 2 * K) + heads) * D
    given = source + (token * (H + 2 * K) + heads) * D
    if GATED:
        given = source + (token * (2 * H + 2 * K) + heads + tl.minimum(heads, H)) * D
    left = tl.load(given + left_index[None, :], mask=inside, other=0.0)
    right = tl.load(given + right_index[None, :], mask=inside, other=0.0)
    if SIZE_IN:
        factor = row_factor(inputs + token * SIZE_IN, input_eps, SIZE_IN, BLOCK_IN)
        # Not rounded until they are stored.
        left, right = left.to(tl.float32) * factor, right.to(tl.float32) * factor
    if HAS_NORM:
        wide_left, wide_right = left.to(tl.float32), right.to(tl.float32)
        square = tl.sum(wide_left * wide_left + wide_right * wide_right, 1)
        scale = tl.rsqrt(square / D + eps)[:, None]
        left = _normed(left, scale, left_weights, is_value)
        right = _normed(right, scale, right_weights, is_value)
    angle = rotary + token * R + pair * 2
    cosine = tl.load(angle, mask=pair < R // 2, other=1.0)[None, :]
    sine = tl.load(angle + 1, mask=pair < R // 2, other=0.0)[None, :]
    wide_left, wide_right = left.to(tl.float32), right.to(tl.float32)
    turned_left = (wide_left * cosine - wide_right * sine).to(left.dtype)
    turned_right = (wide_right * cosine + wide_left * sine).to(left.dtype)
    turned_left = tl.where(is_value, left, turned_left)
    turned_right = tl.where(is_value, right, turned_right)
    if not STORES:
        changed = inside if SIZE_IN else inside & ~is_value
        tl.store(line + left_index[None, :], turned_left, mask=changed)
        tl.store(line + right_index[None, :], turned_right, mask=changed)
        return
    tl.store(line + left_index[None, :], turned_left, mask=inside & is_query)
    tl.store(line + right_index[None, :], turned_right, mask=inside & is_query)
    slot = tl.load(slots + token)
    part = is_value.to(tl.int64)
    kv_head = heads - H - part * K
    place = slot // P * block_stride + slot % P * slot_stride
    target = cache + place + part * kv_stride + kv_head * head_stride
    tl.store(target + left_index[None, :], turned_left, mask=inside & ~is_query)
    tl.store(target + right_index[None, :], turned_right, mask=inside & ~is_query)


@dataclass(frozen=True, slots=True)
class FusedPlaceQkv:
    """`ops.qkv.PlaceQkv`; `interleaved` pairs are (2i, 2i + 1), others (i, i + R/2).

    The leading R numbers of a head are rotated, those that there are angles for.
    """

    interleaved: bool

    def __call__(
        self,
        packed: torch.Tensor,
        heads: HeadShape,
        norms: HeadNorms | None,
        places: TokenPlaces,
        cache: KVCache,
    ) -> None:
        """Change queries in place and write the cache.

        A typed cache is written by a kernel of its own, whose programs see whole groups.
        """
        if isinstance(cache, TypedCache):
            self._turn(packed, packed, heads, norms, (places, None))
            store_typed(packed, heads.num_heads, cache, places.slot_mapping)
        else:
            self._turn(packed, packed, heads, norms, (places, cache))

    def place_unnormed(self, packed: torch.Tensor, placing: Placing, rows: UnnormedRows) -> None:
        """The same of a product of rows that were not normalised, changed in place."""
        heads, norms, places = placing.heads, placing.norms, placing.places
        if isinstance(placing.cache, TypedCache):
            self._turn(packed, packed, heads, norms, (places, None), rows)
            store_typed(packed, heads.num_heads, placing.cache, places.slot_mapping)
        else:
            self._turn(packed, packed, heads, norms, (places, placing.cache), rows)

    def split_and_place(self, projected: torch.Tensor, placing: Placing) -> torch.Tensor:
        """Queries without their gates, which follow them one by one; the cache is written.

        Args:
            projected: [T, (2H + 2K) * D], contiguous.
            placing: with a cache that is one tensor.

        Returns:
            [T, (H + 2K) * D], of which keys and values are not written.
        """
        heads, cache = placing.heads, placing.cache
        assert isinstance(cache, torch.Tensor)
        width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
        packed = projected.new_empty(len(projected), width)
        self._turn(projected, packed, heads, placing.norms, (placing.places, cache))
        return packed

    def _turn(
        self,
        source: torch.Tensor,
        packed: torch.Tensor,
        heads: HeadShape,
        norms: HeadNorms | None,
        where: tuple[TokenPlaces, torch.Tensor | None],
        rows: UnnormedRows | None = None,
    ) -> None:
        """Norm and rotation; keys and values go to the cache, or back to their place."""
        places, cache = where
        tokens, num_heads = packed.shape[0], heads.num_heads + 2 * heads.num_kv_heads
        per_program = _MANY_HEADS if tokens >= _MANY_TOKENS else _FEW_HEADS
        if rows is not None:
            per_program = _MANY_HEADS if tokens >= _SEVERAL_TOKENS else _WIDE_HEADS
        _place_kernel[(tokens, triton.cdiv(num_heads, per_program))](
            source,
            packed,
            packed if norms is None else norms.query,
            packed if norms is None else norms.key,
            places.rotary,
            places.slot_mapping,
            packed if cache is None else cache,
            packed if rows is None else rows.x,
            0.0 if norms is None else norms.eps,
            0.0 if rows is None else rows.eps,
            *((0, 0, 0, 0) if cache is None else cache.stride()[:4]),
            H=heads.num_heads,
            K=heads.num_kv_heads,
            D=heads.head_dim,
            R=2 * places.rotary.shape[-2],
            P=1 if cache is None else cache.shape[1],
            HAS_NORM=norms is not None,
            INTERLEAVED=self.interleaved,
            STORES=cache is not None,
            HEADS=per_program,
            HALF=power_of_two(heads.head_dim // 2),
            GATED=source is not packed,
            SIZE_IN=0 if rows is None else rows.x.shape[1],
            BLOCK_IN=1 if rows is None else power_of_two(rows.x.shape[1]),
            num_warps=1 if per_program == _FEW_HEADS else FACTOR_WARPS,
            **LAUNCH,
        )
