"""Which experts a token goes to, found by every program that needs to know.

A token's logits lie over the lanes of a warp, some in each; all warps of a program have the same
ones, so nothing crosses warps, and results do not depend on how many there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LEAST_BLOCK = 64
"""Logits that all lanes have at least together."""


def is_paired(logits: torch.Tensor) -> bool:
    """Whether each row begins at a whole word, of logits of 16 bits."""
    is_even = logits.stride(0) % 2 == 0 or len(logits) == 1
    return logits.element_size() == 2 and is_even and logits.storage_offset() % 2 == 0


@triton.jit
def logits_of_lanes(logits, EXPERTS: tl.constexpr, BLOCK: tl.constexpr):
    """A token's logits, BLOCK / 32 to a lane, [32] each; -inf beyond those there are."""
    found = ()
    for part in tl.static_range(BLOCK // 32):
        index = part * 32 + tl.arange(0, 32)
        # Past this multiprocessor's own cache: other ones wrote it.
        at, there = logits + index, index < EXPERTS
        value = tl.load(at, mask=there, other=float("-inf"), cache_modifier=".cg")
        found = found + (value,)  # type: ignore[assignment]  # noqa: RUF005
    return found


@triton.jit
def _narrow_key(bits, index, EXPERTS: tl.constexpr, BLOCK: tl.constexpr):
    """Of a logit of 16 bits, the upper ones; for `keys_of`."""
    key = (bits ^ ((bits >> 31) & 0x7FFF0000)) | (0xFFFF - index)
    if EXPERTS != BLOCK:
        key = tl.where(index < EXPERTS, key, -0x80000000)
    return key


@triton.jit
def keys_of(logits, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, PAIRED: tl.constexpr):
    """BLOCK / 32 integers to a lane, [32] each, that order as a token's logits do.

    Of equals, that of the lower index is the larger one; those of experts there are not are the
    least. PAIRED logits of 16 bits begin at a whole word: then two are read at a time.
    """
    keys = ()
    if PAIRED:
        pairs = logits.to(tl.pointer_type(tl.int32), bitcast=True)
        for part in tl.static_range(BLOCK // 64):
            at = part * 32 + tl.arange(0, 32)
            word = tl.load(pairs + at, mask=at * 2 < EXPERTS, other=0, cache_modifier=".cg")
            low = _narrow_key(word << 16, at * 2, EXPERTS, BLOCK)
            high = _narrow_key(word & -0x10000, at * 2 + 1, EXPERTS, BLOCK)
            keys = keys + (low, high)  # type: ignore[assignment]  # noqa: RUF005
    elif logits.dtype.element_ty.primitive_bitwidth == 16:
        values = logits_of_lanes(logits, EXPERTS, BLOCK)
        for part in tl.static_range(BLOCK // 32):
            bits = values[part].to(tl.int16, bitcast=True).to(tl.int32) << 16
            key = _narrow_key(bits, part * 32 + tl.arange(0, 32), EXPERTS, BLOCK)
            keys = keys + (key,)  # type: ignore[assignment]  # noqa: RUF005
    else:
        values = logits_of_lanes(logits, EXPERTS, BLOCK)
        for part in tl.static_range(BLOCK // 32):
            bits = values[part].to(tl.int32, bitcast=True)
            wide = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) << 32
            index = part * 32 + tl.arange(0, 32)
            wide = tl.where(index < EXPERTS, wide | (0xFFFF - index), -0x8000000000000000)
            keys = keys + (wide,)  # type: ignore[assignment]  # noqa: RUF005
    return keys


@triton.jit
def take_best(keys, BLOCK: tl.constexpr):
    """The largest key, and the others."""
    most = keys[0]
    for part in tl.static_range(1, BLOCK // 32):
        most = tl.maximum(most, keys[part])
    best = tl.max(most, 0)
    least: tl.constexpr = -0x80000000 if best.dtype == tl.int32 else -0x8000000000000000
    left = ()
    for part in tl.static_range(BLOCK // 32):
        rest = tl.where(keys[part] == best, least, keys[part])
        left = left + (rest,)  # type: ignore[assignment]  # noqa: RUF005
    return best, left


@triton.jit
def expert_of(key):
    """Whose key it is."""
    return 0xFFFF - (key & 0xFFFF).to(tl.int32)


@triton.jit
def logit_of(key, dtype: tl.constexpr):
    """That it was made of, in float32."""
    if dtype.primitive_bitwidth == 16:
        bits = key >> 16
        bits = bits ^ ((bits >> 15) & 0x7FFF)
        logit = bits.to(tl.int16).to(dtype, bitcast=True).to(tl.float32)
    else:
        bits = (key >> 32).to(tl.int32)
        logit = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return logit


@triton.jit
def picked_expert(logits, place, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, PAIRED: tl.constexpr):
    """The expert that comes after so many others of one token."""
    keys = keys_of(logits, EXPERTS, BLOCK, PAIRED)
    best, keys = take_best(keys, BLOCK)
    for _ in range(place):
        best, keys = take_best(keys, BLOCK)
    return expert_of(best)


@triton.jit
def picked_experts(
    logits, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, NORM: tl.constexpr,
    BLOCK: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """All that one token goes to, and their weights, rounded as the logits are; scalars."""
    keys = keys_of(logits, EXPERTS, BLOCK, PAIRED)
    dtype: tl.constexpr = logits.dtype.element_ty
    best, keys = take_best(keys, BLOCK)
    largest = logit_of(best, dtype)
    experts = (expert_of(best),)
    shares = (tl.exp(largest - largest),)
    total = shares[0]
    for _ in tl.static_range(1, CHOSEN):
        best, keys = take_best(keys, BLOCK)
        share = tl.exp(logit_of(best, dtype) - largest)
        experts = experts + (expert_of(best),)  # type: ignore[assignment]  # noqa: RUF005
        shares = shares + (share,)  # type: ignore[assignment]  # noqa: RUF005
        total += share
    if not NORM:
        values = logits_of_lanes(logits, EXPERTS, BLOCK)
        every = tl.exp(values[0].to(tl.float32) - largest)
        for part in tl.static_range(1, BLOCK // 32):
            every += tl.exp(values[part].to(tl.float32) - largest)
        total = tl.sum(every, 0)
    weights = ()
    for place in tl.static_range(CHOSEN):
        weight = (shares[place] / total).to(dtype).to(tl.float32)
        weights = weights + (weight,)  # type: ignore[assignment]  # noqa: RUF005
    return experts, weights


@triton.jit
def by_place(values, places, CHOSEN: tl.constexpr):
    """values[place] of each place, from a tuple of scalars; the last one's beyond them."""
    found = tl.zeros(places.shape, values[0].dtype) + values[CHOSEN - 1]
    for place in tl.static_range(CHOSEN - 1):
        found = tl.where(places == place, values[place], found)
    return found
