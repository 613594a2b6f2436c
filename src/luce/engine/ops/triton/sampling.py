"""Sampling on the device: penalties, bias, greedy choice and draw, each row by its own parameters.

The chain and its cuts are those of `sampling.sampler`, the reference: every cut is by value, so a
row's choice depends on its own logits and parameters alone. Rows that need a stage less leave it
at once, so a greedy batch pays for the search of the maximum only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs

MAX_BIAS = 1024
"""Most logit biases of a row that the kernels hold."""

_PART = 8192
_WINDOW = 64
_BLOCK = 1024
_EMPTY = tl.constexpr(2**31 - 1)


@dataclass(frozen=True, slots=True)
class RowParams:
    """Sampling parameters of every row, on the device; written when a row starts.

    Attributes:
        floats: f32 [R, 6]: temperature, top_p, min_p, repetition, frequency, presence.
        ints: i32 [R, 5]: top_k, window of the penalties or 0, number of biases, seed low, high.
        bias_ids: i32 [R, MAX_BIAS].
        bias_values: f32 [R, MAX_BIAS].
        tokens: i32 [R, C + 1]: token at each position; a sampled one is written behind.
    """

    floats: torch.Tensor
    ints: torch.Tensor
    bias_ids: torch.Tensor
    bias_values: torch.Tensor
    tokens: torch.Tensor


@triton.jit
def _adjust_kernel(
    logits,
    lanes,
    floats,
    ints,
    bias_ids,
    bias_values,
    tokens,
    vocab_size,
    token_stride,
    bias_stride,
    WINDOW: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Program (lane): penalties on the distinct tokens of the window, then the biases."""
    wait_for_inputs()
    lane = tl.program_id(0).to(tl.int64)
    row, position = tl.load(lanes + lane * 4), tl.load(lanes + lane * 4 + 1)
    size = min(tl.load(ints + row * 5 + 1), position + 1)
    num_biases = tl.load(ints + row * 5 + 2)
    line = logits + lane * vocab_size
    if size > 0:
        repetition = tl.load(floats + row * 6 + 3)
        frequency, presence = tl.load(floats + row * 6 + 4), tl.load(floats + row * 6 + 5)
        history = tokens + row.to(tl.int64) * token_stride + position + 1 - size
        for first in range(0, size, WINDOW):
            mine = first + tl.arange(0, WINDOW)
            token = tl.load(history + mine, mask=mine < size, other=-1)
            count = tl.zeros((WINDOW,), tl.float32)
            earlier = tl.zeros((WINDOW,), tl.int32)
            for other in range(0, size, WINDOW):
                theirs = other + tl.arange(0, WINDOW)
                same = tl.load(history + theirs, mask=theirs < size, other=-2)
                equal = (token[:, None] == same[None, :]).to(tl.int32)
                count += tl.sum(equal, 1).to(tl.float32)
                earlier += tl.sum(equal * (theirs[None, :] < mine[:, None]).to(tl.int32), 1)
            # The first place of a token answers for all of them.
            mask = (mine < size) & (earlier == 0)
            value = tl.load(line + token, mask=mask, other=0.0)
            value = tl.where(value > 0, value / repetition, value * repetition)
            tl.store(line + token, value - count * frequency - presence, mask=mask)
        tl.debug_barrier()
    for first in range(0, num_biases, BIAS):
        index = first + tl.arange(0, BIAS)
        mask = index < num_biases
        token = tl.load(bias_ids + row * bias_stride + index, mask=mask, other=0)
        value = tl.load(bias_values + row * bias_stride + index, mask=mask, other=0.0)
        tl.store(line + token, tl.load(line + token, mask=mask, other=0.0) + value, mask=mask)


@triton.jit
def _mask_kernel(logits, lines, words, vocab_size, num_words, PART: tl.constexpr):
    """Program (part, mask): -inf for the tokens of a line that its mask forbids."""
    wait_for_inputs()
    part, mask = tl.program_id(0), tl.program_id(1).to(tl.int64)
    line = tl.load(lines + mask).to(tl.int64)
    index = part * PART + tl.arange(0, PART)
    inside = index < vocab_size
    word = tl.load(words + mask * num_words + index // 32, mask=inside, other=-1)
    is_forbidden = ((word >> (index % 32)) & 1) == 0
    tl.store(logits + line * vocab_size + index, float("-inf"), mask=inside & is_forbidden)


@triton.jit
def _best_kernel(logits, values, indices, vocab_size, PART: tl.constexpr):
    """Program (part, lane): largest logit of a part and its first place; +inf for not a number."""
    wait_for_inputs()
    part, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    index = part * PART + tl.arange(0, PART)
    x = tl.load(logits + lane * vocab_size + index, mask=index < vocab_size, other=float("-inf"))
    best = tl.max(x, 0)
    place = tl.min(tl.where(x == best, index, _EMPTY), 0)
    is_broken = tl.max((x != x).to(tl.int32), 0) > 0
    out = lane * tl.num_programs(0) + part
    tl.store(values + out, tl.where(is_broken, float("inf"), best))
    tl.store(indices + out, place)


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
    line, vocab_size, top, temperature, logit_floor, min_p, needed, BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
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
            x = tl.load(line + index, mask=inside, other=float("-inf"))
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
def _draw(line, vocab_size, top, row, output_index, floats, ints, BLOCK: tl.constexpr):
    """A token of the row's distribution, or -1 where there is none."""
    temperature, min_p = tl.load(floats + row * 6), tl.load(floats + row * 6 + 2)
    top_p, top_k = tl.load(floats + row * 6 + 1), tl.load(ints + row * 5)
    logit_floor, weight_floor = tl.full((), 0, tl.uint32), tl.full((), 0, tl.uint32)
    if (top_k > 0) & (top_k < vocab_size):
        logit_floor = _search_floor(
            line, vocab_size, top, temperature, logit_floor, min_p, top_k.to(tl.float64),
            BY_MASS=False, BLOCK=BLOCK,
        )  # fmt: skip
    total = tl.full((), 0.0, tl.float64)
    for first in range(0, vocab_size, BLOCK):
        index = first + tl.arange(0, BLOCK)
        x = tl.load(line + index, mask=index < vocab_size, other=float("-inf"))
        total += tl.sum(_weights(x, top, temperature, logit_floor, min_p).to(tl.float64), 0)
    if (top_p > 0) & (top_p < 1):
        weight_floor = _search_floor(
            line, vocab_size, top, temperature, logit_floor, min_p, total * top_p,
            BY_MASS=True, BLOCK=BLOCK,
        )  # fmt: skip
        total = tl.full((), 0.0, tl.float64)
        for first in range(0, vocab_size, BLOCK):
            index = first + tl.arange(0, BLOCK)
            x = tl.load(line + index, mask=index < vocab_size, other=float("-inf"))
            weight = _weights(x, top, temperature, logit_floor, min_p)
            weight = tl.where(weight.to(tl.uint32, bitcast=True) >= weight_floor, weight, 0.0)
            total += tl.sum(weight.to(tl.float64), 0)
    seed_low, seed_high = tl.load(ints + row * 5 + 3), tl.load(ints + row * 5 + 4)
    target = total * _uniform(seed_low, seed_high, output_index)
    passed = tl.full((), 0.0, tl.float64)
    chosen, last = tl.full((), 2**31 - 1, tl.int32), tl.full((), -1, tl.int32)
    for first in range(0, vocab_size, BLOCK):
        index = first + tl.arange(0, BLOCK)
        x = tl.load(line + index, mask=index < vocab_size, other=float("-inf"))
        weight = _weights(x, top, temperature, logit_floor, min_p)
        weight = tl.where(weight.to(tl.uint32, bitcast=True) >= weight_floor, weight, 0.0)
        reached = passed + tl.cumsum(weight.to(tl.float64), 0)
        hit = (reached > target) & (weight > 0)
        chosen = min(chosen, tl.min(tl.where(hit, index, 2**31 - 1), 0))
        last = max(last, tl.max(tl.where(weight > 0, index, -1), 0))
        passed += tl.sum(weight.to(tl.float64), 0)
    # Rounding may leave the sum short of the target; then it is the last token there is.
    return tl.where(chosen < vocab_size, chosen, last)


@triton.jit
def _choose_kernel(
    logits,
    lanes,
    values,
    indices,
    floats,
    ints,
    tokens,
    out,
    vocab_size,
    num_parts,
    token_stride,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (lane): the token, and its place in the row's history."""
    wait_for_inputs()
    lane = tl.program_id(0).to(tl.int64)
    row, position = tl.load(lanes + lane * 4), tl.load(lanes + lane * 4 + 1)
    part = tl.arange(0, PARTS)
    there = part < num_parts
    best = tl.load(values + lane * num_parts + part, mask=there, other=float("-inf"))
    place = tl.load(indices + lane * num_parts + part, mask=there, other=_EMPTY)
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, place, _EMPTY), 0)
    is_finite = (top < float("inf")) & (top > float("-inf"))
    token = tl.where(is_finite, token, -1)
    if (tl.load(floats + row * 6) > 0) & is_finite:
        index = tl.load(lanes + lane * 4 + 3)
        line = logits + lane * vocab_size
        token = _draw(line, vocab_size, top, row, index, floats, ints, BLOCK)
    tl.store(out + lane, token)
    # -1 marks a failed row; the host ends its sequence, and a step that was planned before that
    # must not read out of the vocabulary.
    history = tokens + row.to(tl.int64) * token_stride + position + 1
    tl.store(history, tl.maximum(token, 0))


@dataclass(frozen=True, slots=True)
class DeviceSampler:
    """Samples lanes; what a row's sequence brought lies in `params`."""

    params: RowParams

    def sample(self, logits: torch.Tensor, lanes: torch.Tensor) -> torch.Tensor:
        """`adjust`, then `choose`."""
        self.adjust(logits, lanes)
        return self.choose(logits, lanes)

    def adjust(self, logits: torch.Tensor, lanes: torch.Tensor) -> None:
        """Apply penalties and biases to f32 [n, V]; `lanes` as in `choose`."""
        params = self.params
        num_lanes, vocab_size = logits.shape
        _adjust_kernel[(num_lanes,)](
            logits,
            lanes,
            params.floats,
            params.ints,
            params.bias_ids,
            params.bias_values,
            params.tokens,
            vocab_size,
            params.tokens.stride(0),
            params.bias_ids.stride(0),
            WINDOW=_WINDOW,
            BIAS=128,
            num_warps=4,
            **LAUNCH,
        )

    def mask(self, logits: torch.Tensor, lines: torch.Tensor, words: torch.Tensor) -> None:
        """Make the logits of forbidden tokens -inf; see `sampling.masks.TokenMasks`.

        Args:
            logits: f32 [n, V]; changed.
            lines: i32 [k]: which of them.
            words: i32 [k, W].
        """
        vocab_size = logits.shape[1]
        _mask_kernel[(triton.cdiv(vocab_size, _PART), lines.shape[0])](
            logits, lines, words, vocab_size, words.shape[1], PART=_PART, num_warps=8, **LAUNCH
        )

    def choose(self, logits: torch.Tensor, lanes: torch.Tensor) -> torch.Tensor:
        """Choose one token a lane and write it behind the lane's position.

        Args:
            logits: f32 [n, V].
            lanes: i32 [n, 4]: row, position of the last token, unused, output index.

        Returns:
            i32 [n]; -1 where the logits are not numbers.
        """
        params = self.params
        num_lanes, vocab_size = logits.shape
        parts = triton.cdiv(vocab_size, _PART)
        values = torch.empty(num_lanes, parts, dtype=torch.float32, device=logits.device)
        indices = torch.empty(num_lanes, parts, dtype=torch.int32, device=logits.device)
        _best_kernel[(parts, num_lanes)](
            logits, values, indices, vocab_size, PART=_PART, num_warps=8, **LAUNCH
        )
        out = torch.empty(num_lanes, dtype=torch.int32, device=logits.device)
        _choose_kernel[(num_lanes,)](
            logits,
            lanes,
            values,
            indices,
            params.floats,
            params.ints,
            params.tokens,
            out,
            vocab_size,
            parts,
            params.tokens.stride(0),
            PARTS=power_of_two(parts),
            BLOCK=_BLOCK,
            num_warps=8,
            **LAUNCH,
        )
        return out
