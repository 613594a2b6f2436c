"""Sampling on the device: penalties, bias, greedy choice and draw, each row by its own parameters.

The chain and its cuts are those of `sampling.sampler`, the reference: every cut is by value, so a
row's choice depends on its own logits and parameters alone. Rows that need a stage less leave it
at once, so a greedy batch pays for the search of the maximum only.

All arithmetic is float32. Logits stay in the type the model computes them in, and are read so;
only lines that penalties or biases change are widened first, since their sums would not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from luce.engine.lent_memory import lent
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs
from luce.engine.ops.triton.sampling_draw import draw, is_changed_line
from luce.engine.step_ring import SLOTS, RingPlace

MAX_BIAS = 1024
"""Most logit biases of a row that the kernels hold."""

_PART, _SMALL_PART = 8192, 2048
"""Logits of a program; of few lanes, so that one spreads over the chip."""
_ADJUSTING = 128
"""Programs that apply penalties and biases, unless there are more lanes."""
_FEW_LANES = 4
"""For which adjusting, in the registers that it takes, is part of searching the maximum."""
_WINDOW, _BIAS = 64, 128
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


@dataclass(frozen=True, slots=True)
class StepLogits:
    """Logits of the lanes of a step.

    Attributes:
        raw: [n, V] as the model computed them.
        wide: f32 [n, V]; holds the lines of rows with penalties or biases, changed by them, and
            nothing in the others; `raw` itself where that is float32.
    """

    raw: torch.Tensor
    wide: torch.Tensor

    @classmethod
    def of(cls, raw: torch.Tensor) -> StepLogits:
        """With room for lines that are widened, where they may have to be."""
        if raw.dtype == torch.float32:
            return cls(raw, raw)
        return cls(raw, raw.new_empty(raw.shape, dtype=torch.float32))

    @property
    def is_narrow(self) -> bool:
        """Whether some lines may have to be widened."""
        return self.raw is not self.wide

    def lent(self) -> StepLogits:
        """The same in memory that steps captured later use too; see `lent_memory`."""
        raw = lent(self.raw)
        return StepLogits(raw, lent(self.wide) if self.is_narrow else raw)

    def first(self, count: int) -> StepLogits:
        """Of the first lanes."""
        if not self.is_narrow:
            line = self.raw[:count]
            return StepLogits(line, line)
        return StepLogits(self.raw[:count], self.wide[:count])


@triton.jit
def _penalise(
    line, history, size, begin, stop, repetition, frequency, presence, WINDOW: tl.constexpr
):
    """Penalties on the distinct tokens of a window that lie in a range."""
    for first in range(0, size, WINDOW):
        mine = first + tl.arange(0, WINDOW)
        token = tl.load(history + mine, mask=mine < size, other=-1)
        is_here = (token >= begin) & (token < stop)
        if tl.max(is_here.to(tl.int32), 0) > 0:
            count = tl.zeros((WINDOW,), tl.float32)
            earlier = tl.zeros((WINDOW,), tl.int32)
            for other in range(0, size, WINDOW):
                theirs = other + tl.arange(0, WINDOW)
                same = tl.load(history + theirs, mask=theirs < size, other=-2)
                equal = (token[:, None] == same[None, :]).to(tl.int32)
                count += tl.sum(equal, 1).to(tl.float32)
                earlier += tl.sum(equal * (theirs[None, :] < mine[:, None]).to(tl.int32), 1)
            # The first place of a token answers for all of them.
            mask = is_here & (earlier == 0)
            value = tl.load(line + token, mask=mask, other=0.0)
            value = tl.where(value > 0, value / repetition, value * repetition)
            tl.store(line + token, value - count * frequency - presence, mask=mask)


@triton.jit
def _adjust(
    raw, wide, lane, lanes, floats, ints, bias_ids, bias_values, tokens, begin, stop,
    vocab_size, token_stride, bias_stride,
    NARROW: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Widening, penalties and biases of a range of a lane's logits; all its threads see them."""
    row, position = tl.load(lanes + lane * 4), tl.load(lanes + lane * 4 + 1)
    size = min(tl.load(ints + row * 5 + 1), position + 1)
    num_biases = tl.load(ints + row * 5 + 2)
    line = wide + lane * vocab_size
    if NARROW and (size > 0) | (num_biases > 0):
        source = raw + lane * vocab_size
        for first in range(begin, stop, BLOCK):
            index = first + tl.arange(0, BLOCK)
            x = tl.load(source + index, mask=index < stop, other=0.0)
            tl.store(line + index, x.to(tl.float32), mask=index < stop)
        tl.debug_barrier()
    if size > 0:
        _penalise(
            line, tokens + row.to(tl.int64) * token_stride + position + 1 - size, size, begin, stop,
            tl.load(floats + row * 6 + 3), tl.load(floats + row * 6 + 4),
            tl.load(floats + row * 6 + 5), WINDOW,
        )  # fmt: skip
        tl.debug_barrier()
    for first in range(0, num_biases, BIAS):
        index = first + tl.arange(0, BIAS)
        token = tl.load(bias_ids + row * bias_stride + index, mask=index < num_biases, other=-1)
        mask = (token >= begin) & (token < stop)
        value = tl.load(bias_values + row * bias_stride + index, mask=mask, other=0.0)
        tl.store(line + token, tl.load(line + token, mask=mask, other=0.0) + value, mask=mask)
    tl.debug_barrier()


@direct
@triton.jit
def _adjust_kernel(
    raw, wide, lanes, floats, ints, bias_ids, bias_values, tokens, vocab_size, token_stride,
    bias_stride, part_size,
    NARROW: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (part, lane)."""
    wait_for_inputs()
    begin = tl.program_id(0) * part_size
    _adjust(
        raw, wide, tl.program_id(1).to(tl.int64), lanes, floats, ints, bias_ids, bias_values,
        tokens, begin, tl.minimum(begin + part_size, vocab_size), vocab_size, token_stride,
        bias_stride, NARROW, WINDOW, BIAS, BLOCK,
    )  # fmt: skip


@direct
@triton.jit
def _mask_kernel(
    raw, wide, lines, words, vocab_size, num_words, NARROW: tl.constexpr, PART: tl.constexpr
):
    """Program (part, mask): -inf for the tokens of a line that its mask forbids."""
    wait_for_inputs()
    part, mask = tl.program_id(0), tl.program_id(1).to(tl.int64)
    line = tl.load(lines + mask).to(tl.int64)
    index = part * PART + tl.arange(0, PART)
    inside = index < vocab_size
    word = tl.load(words + mask * num_words + index // 32, mask=inside, other=-1)
    is_forbidden = ((word >> (index % 32)) & 1) == 0
    tl.store(raw + line * vocab_size + index, float("-inf"), mask=inside & is_forbidden)
    if NARROW:
        # Where the line is not in use it holds nothing, and this neither.
        tl.store(wide + line * vocab_size + index, float("-inf"), mask=inside & is_forbidden)


@direct
@triton.jit
def _best_kernel(
    raw, wide, lanes, floats, ints, bias_ids, bias_values, tokens, values, indices, vocab_size,
    token_stride, bias_stride,
    NARROW: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
    PART: tl.constexpr, ADJUSTS: tl.constexpr,
):  # fmt: skip
    """Program (part, lane): largest logit of a part and its first place; +inf for not a number.

    ADJUSTS: penalties and biases are still to be applied.
    """
    part, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    # Lanes and what is said of their rows are there from the begin of the step.
    is_changed = (NARROW or ADJUSTS) and is_changed_line(ints, tl.load(lanes + lane * 4))
    wait_for_inputs()
    index = part * PART + tl.arange(0, PART)
    line, inside = lane * vocab_size + index, index < vocab_size
    # Without knowing yet whether they hold: few lines are changed.
    x = tl.load(raw + line, mask=inside, other=float("-inf")).to(tl.float32)
    if is_changed:
        if ADJUSTS:
            _adjust(
                raw, wide, lane, lanes, floats, ints, bias_ids, bias_values, tokens,
                part * PART, tl.minimum(part * PART + PART, vocab_size), vocab_size,
                token_stride, bias_stride, NARROW, WINDOW, BIAS, BLOCK,
            )  # fmt: skip
        x = tl.load(wide + line, mask=inside, other=float("-inf"))
    best = tl.max(x, 0)
    place = tl.min(tl.where(x == best, index, _EMPTY), 0)
    is_broken = tl.max((x != x).to(tl.int32), 0) > 0
    out = lane * tl.num_programs(0) + part
    tl.store(values + out, tl.where(is_broken, float("inf"), best))
    tl.store(indices + out, place)


@triton.jit
def _keep(
    token, lane, out, history, left, state, slot, SLOTS: tl.constexpr, MODIFIER: tl.constexpr,
):  # fmt: skip
    """Write a token everywhere it is wanted, and say whose turn is next.

    MODIFIER tells the compiler's copies of it apart.
    """
    tl.store(out + lane, token)
    tl.store(history, tl.maximum(token, 0))
    if SLOTS != 0:
        tl.store(left, token, cache_modifier=MODIFIER)
        if lane == 0:
            tl.store(state, (slot + 1) % SLOTS, cache_modifier=MODIFIER)


@direct
@triton.jit
def _choose_kernel(
    raw, wide, lanes, values, indices, floats, ints, tokens, out, ring, state,
    vocab_size, num_parts, token_stride, ring_stride,
    NARROW: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Program (lane): the token, and its place in the row's history."""
    lane = tl.program_id(0).to(tl.int64)
    # There from the begin of the step, as in `_best_kernel`.
    row, position = tl.load(lanes + lane * 4), tl.load(lanes + lane * 4 + 1)
    is_drawn = tl.load(floats + row * 6) > 0
    # -1 marks a failed row; the host ends its sequence, and a step that was planned before that
    # must not read out of the vocabulary.
    history = tokens + row.to(tl.int64) * token_stride + position + 1
    slot = 0
    if SLOTS != 0:
        slot = tl.load(state + 1)
    left = ring + slot * ring_stride + lane
    wait_for_inputs()
    part = tl.arange(0, PARTS)
    there = part < num_parts
    best = tl.load(values + lane * num_parts + part, mask=there, other=float("-inf"))
    place = tl.load(indices + lane * num_parts + part, mask=there, other=_EMPTY)
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, place, _EMPTY), 0)
    is_finite = (top < float("inf")) & (top > float("-inf"))
    token = tl.where(is_finite, token, -1)
    # The likeliest is kept ahead of the code that draws: what is behind that must be fetched.
    if not (is_drawn & is_finite):
        _keep(token, lane, out, history, left, state, slot, SLOTS, ".wt")
        return
    index = tl.load(lanes + lane * 4 + 3)
    is_changed = False
    if NARROW:
        is_changed = is_changed_line(ints, row)
    line = lane * vocab_size
    token = draw(
        raw + line, wide + line, is_changed, vocab_size, top, row, index, floats, ints,
        NARROW, BLOCK,
    )  # fmt: skip
    _keep(token, lane, out, history, left, state, slot, SLOTS, "")


@dataclass(frozen=True, slots=True)
class DeviceSampler:
    """Samples lanes; what a row's sequence brought lies in `params`."""

    params: RowParams

    def adjust(self, raw: torch.Tensor, lanes: torch.Tensor) -> StepLogits:
        """Apply penalties and biases; `lanes` as in `choose`.

        Args:
            raw: [n, V]; changed if it is float32.
            lanes: whose.
        """
        logits = StepLogits.of(raw)
        num_lanes, vocab_size = raw.shape
        # Most lines are left as they are, so no more programs than there is room for at once.
        part = _BLOCK * triton.cdiv(vocab_size, _BLOCK * max(1, _ADJUSTING // num_lanes))
        _adjust_kernel[(triton.cdiv(vocab_size, part), num_lanes)](
            logits.raw, logits.wide, lanes, *self._adjustments(), vocab_size, *self._strides(),
            part, NARROW=logits.is_narrow, WINDOW=_WINDOW, BIAS=_BIAS, BLOCK=_BLOCK, num_warps=4,
            **LAUNCH,
        )  # fmt: skip
        return logits

    def _adjustments(self) -> tuple[torch.Tensor, ...]:
        params = self.params
        return params.floats, params.ints, params.bias_ids, params.bias_values, params.tokens

    def _strides(self) -> tuple[int, int]:
        return self.params.tokens.stride(0), self.params.bias_ids.stride(0)

    def mask(self, logits: StepLogits, lines: torch.Tensor, words: torch.Tensor) -> None:
        """Make the logits of forbidden tokens -inf; see `sampling.masks.TokenMasks`.

        Args:
            logits: changed.
            lines: i32 [k]: which of them.
            words: i32 [k, W].
        """
        vocab_size = logits.raw.shape[1]
        _mask_kernel[(triton.cdiv(vocab_size, _PART), lines.shape[0])](
            logits.raw, logits.wide, lines, words, vocab_size, words.shape[1],
            NARROW=logits.is_narrow, PART=_PART, num_warps=8, **LAUNCH,
        )  # fmt: skip

    def adjust_and_choose(
        self, raw: torch.Tensor, lanes: torch.Tensor, ring: RingPlace | None = None
    ) -> tuple[StepLogits, torch.Tensor]:
        """Both, a kernel less for few lanes; `ring` as in `_choose`."""
        if len(raw) > _FEW_LANES:
            logits = self.adjust(raw, lanes)
            return logits, self._choose(logits, lanes, ring, adjusts=False)
        logits = StepLogits.of(raw)
        return logits, self._choose(logits, lanes, ring, adjusts=True)

    def choose(self, logits: StepLogits, lanes: torch.Tensor) -> torch.Tensor:
        """Choose one token a lane and write it behind the lane's position.

        Args:
            logits: as `adjust` left them.
            lanes: i32 [n, 4]: row, position of the last token, unused, output index.

        Returns:
            i32 [n]; -1 where the logits are not numbers.
        """
        return self._choose(logits, lanes, None, adjusts=False)

    def _choose(
        self, logits: StepLogits, lanes: torch.Tensor, ring: RingPlace | None, *, adjusts: bool
    ) -> torch.Tensor:
        """`ring` is where tokens go as well; then it is the next slot's turn."""
        params, raw = self.params, logits.raw
        num_lanes, vocab_size = raw.shape
        size = _PART if num_lanes > _FEW_LANES else _SMALL_PART
        parts = triton.cdiv(vocab_size, size)
        values = torch.empty(num_lanes, parts, dtype=torch.float32, device=raw.device)
        indices = torch.empty(num_lanes, parts, dtype=torch.int32, device=raw.device)
        _best_kernel[(parts, num_lanes)](
            raw, logits.wide, lanes, *self._adjustments(), values, indices, vocab_size,
            *self._strides(), NARROW=logits.is_narrow, WINDOW=_WINDOW, BIAS=_BIAS, BLOCK=_BLOCK,
            PART=size, ADJUSTS=adjusts, num_warps=8 if size == _PART else 4, **LAUNCH,
        )  # fmt: skip
        out = torch.empty(num_lanes, dtype=torch.int32, device=raw.device)
        ends = (out, out) if ring is None else (ring.tokens, ring.state)
        _choose_kernel[(num_lanes,)](
            raw, logits.wide, lanes, values, indices, params.floats, params.ints, params.tokens,
            out, *ends, vocab_size, parts, params.tokens.stride(0), ends[0].stride(0),
            NARROW=logits.is_narrow, PARTS=power_of_two(parts), BLOCK=_BLOCK,
            SLOTS=0 if ring is None else SLOTS, num_warps=8, **LAUNCH,
        )  # fmt: skip
        return out
