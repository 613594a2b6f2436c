"""Drawing a token of a row's distribution on the device, and how sampling reads logits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def is_changed_line(ints, row):
    """Whether the row has penalties or biases."""
    return (tl.load(ints + row * 5 + 1) > 0) | (tl.load(ints + row * 5 + 2) > 0)


@triton.jit
def load_logits(raw, wide, offset, inside, is_changed, NARROW: tl.constexpr):
    """Logits at some places as float32, of the line that holds for the lane."""
    if NARROW:
        if is_changed:
            x = tl.load(wide + offset, mask=inside, other=float("-inf"))
        else:
            x = tl.load(raw + offset, mask=inside, other=float("-inf")).to(tl.float32)
    else:
        x = tl.load(raw + offset, mask=inside, other=float("-inf"))
    return x


@triton.jit
def _order_key(x):
    """float32 → uint32 in the same order; both zeros are one."""
    bits = (x + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _weights(x, top, temperature, logit_floor, min_p):
    """Unnormalised probabilities with top-k and min-p cut; the likeliest has 1."""
    weight = tl.exp((x - top) / temperature)
    return tl.where((_order_key(x) >= logit_floor) & (weight >= min_p), weight, 0.0)


@triton.jit
def _search_floor(
    raw, wide, is_changed, vocab_size, top, temperature, logit_floor, min_p, needed,
    BY_MASS: tl.constexpr, NARROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest key at or above which lie `needed` elements, or so much of their weight.

    Four bits a round: sixteen candidates are weighed in one pass over the row.
    """
    floor = tl.full((), 0, tl.uint32)
    digits = tl.arange(0, 16)
    for step in tl.static_range(8):
        shift = 28 - 4 * step
        candidates = floor + (digits.to(tl.uint32) << shift)
        mass = tl.zeros((16,), tl.float64)
        for first in range(0, vocab_size, BLOCK):
            index = first + tl.arange(0, BLOCK)
            inside = index < vocab_size
            x = load_logits(raw, wide, index, inside, is_changed, NARROW)
            if BY_MASS:
                weight = _weights(x, top, temperature, logit_floor, min_p)
                key = weight.to(tl.uint32, bitcast=True)
            else:
                weight = inside.to(tl.float32)
                key = _order_key(x)
            counted = tl.where(key[None, :] >= candidates[:, None], weight[None, :], 0.0)
            mass += tl.sum(counted, 1).to(tl.float64)
        digit = tl.max(tl.where(mass >= needed, digits, 0), 0)
        floor += digit.to(tl.uint32) << shift
    return floor


@triton.jit
def _uniform(low, high, index):
    """`sampling.rng.uniform`: Philox 4x32-10 of (seed, output index), 53 bits."""
    a, b = index.to(tl.uint32, bitcast=True), tl.full((), 0, tl.uint32)
    c, d = b, b
    left, right = low.to(tl.uint32, bitcast=True), high.to(tl.uint32, bitcast=True)
    for _ in tl.static_range(10):
        first = a.to(tl.uint64) * 0xD2511F53
        second = c.to(tl.uint64) * 0xCD9E8D57
        a = (second >> 32).to(tl.uint32) ^ b ^ left
        c = (first >> 32).to(tl.uint32) ^ d ^ right
        b, d = second.to(tl.uint32), first.to(tl.uint32)
        left, right = left + 0x9E3779B9, right + 0xBB67AE85
    bits = (a.to(tl.uint64) << 32 | b.to(tl.uint64)) >> 11
    return bits.to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def draw(
    raw, wide, is_changed, vocab_size, top, row, output_index, floats, ints,
    NARROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A token of the row's distribution, or -1 where there is none."""
    temperature, min_p = tl.load(floats + row * 6), tl.load(floats + row * 6 + 2)
    top_p, top_k = tl.load(floats + row * 6 + 1), tl.load(ints + row * 5)
    logit_floor, weight_floor = tl.full((), 0, tl.uint32), tl.full((), 0, tl.uint32)
    if (top_k > 0) & (top_k < vocab_size):
        logit_floor = _search_floor(
            raw, wide, is_changed, vocab_size, top, temperature, logit_floor, min_p,
            top_k.to(tl.float64), BY_MASS=False, NARROW=NARROW, BLOCK=BLOCK,
        )  # fmt: skip
    total = tl.full((), 0.0, tl.float64)
    for first in range(0, vocab_size, BLOCK):
        index = first + tl.arange(0, BLOCK)
        x = load_logits(raw, wide, index, index < vocab_size, is_changed, NARROW)
        total += tl.sum(_weights(x, top, temperature, logit_floor, min_p).to(tl.float64), 0)
    if (top_p > 0) & (top_p < 1):
        weight_floor = _search_floor(
            raw, wide, is_changed, vocab_size, top, temperature, logit_floor, min_p,
            total * top_p, BY_MASS=True, NARROW=NARROW, BLOCK=BLOCK,
        )  # fmt: skip
        total = tl.full((), 0.0, tl.float64)
        for first in range(0, vocab_size, BLOCK):
            index = first + tl.arange(0, BLOCK)
            x = load_logits(raw, wide, index, index < vocab_size, is_changed, NARROW)
            weight = _weights(x, top, temperature, logit_floor, min_p)
            weight = tl.where(weight.to(tl.uint32, bitcast=True) >= weight_floor, weight, 0.0)
            total += tl.sum(weight.to(tl.float64), 0)
    seed_low, seed_high = tl.load(ints + row * 5 + 3), tl.load(ints + row * 5 + 4)
    target = total * _uniform(seed_low, seed_high, output_index)
    passed = tl.full((), 0.0, tl.float64)
    chosen, last = tl.full((), 2**31 - 1, tl.int32), tl.full((), -1, tl.int32)
    for first in range(0, vocab_size, BLOCK):
        index = first + tl.arange(0, BLOCK)
        x = load_logits(raw, wide, index, index < vocab_size, is_changed, NARROW)
        weight = _weights(x, top, temperature, logit_floor, min_p)
        weight = tl.where(weight.to(tl.uint32, bitcast=True) >= weight_floor, weight, 0.0)
        reached = passed + tl.cumsum(weight.to(tl.float64), 0)
        hit = (reached > target) & (weight > 0)
        chosen = min(chosen, tl.min(tl.where(hit, index, 2**31 - 1), 0))
        last = max(last, tl.max(tl.where(weight > 0, index, -1), 0))
        passed += tl.sum(weight.to(tl.float64), 0)
    # Rounding may leave the sum short of the target; then it is the last token there is.
    return tl.where(chosen < vocab_size, chosen, last)
