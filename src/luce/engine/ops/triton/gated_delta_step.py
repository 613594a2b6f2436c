"""One token of a gated DeltaNet layer in one kernel: convolution, recurrence, norm and gate.

A program has a value head's whole state. Value heads that share a key head convolve its channels
each for itself; the last of them to have read the convolution's old inputs moves those on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
import triton
import triton.language as tl

from luce.engine.device import kernel_refusal
from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.cuda import delta_words
from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState
from luce.engine.ops.triton.causal_conv import KEY_EPS
from luce.engine.ops.triton.gated_delta_chunk import gate_of, key_head, log_decay
from luce.engine.ops.triton.norm_quantise import PartWords
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, sigmoid, wait_for_inputs
from luce.engine.ops.triton.quant_activations import store_run
from luce.loaders.quant_formats import GROUP

MOST_KEY_HEADS = 128
_MOST_STATE = 128 * 128
_COLUMNS = 16
_WORD_COLUMNS = 16
_THREAD_ELEMENTS = 64
"""Of a state."""


@triton.jit
def _old_inputs(line, channels, inside, C: tl.constexpr, WIDTH: tl.constexpr):
    """The convolution's last inputs, oldest first."""
    old = ()
    for tap in tl.static_range(WIDTH - 1):
        value = tl.load(line + tap * C + channels, mask=inside, other=0.0)
        old = old + (value,)  # type: ignore[assignment]  # noqa: RUF005
    return old


@triton.jit
def _factors(taps, channels, inside, WIDTH: tl.constexpr):
    """The convolution's, one an input, oldest first."""
    factors = ()
    for tap in tl.static_range(WIDTH):
        value = tl.load(taps + channels * WIDTH + tap, mask=inside, other=0.0)
        factors = factors + (value,)  # type: ignore[assignment]  # noqa: RUF005
    return factors


@triton.jit
def _taps_of(line, taps, channels, inside, C: tl.constexpr, WIDTH: tl.constexpr):
    """The convolution's last inputs and its factors."""
    old = _old_inputs(line, channels, inside, C, WIDTH)
    return old, _factors(taps, channels, inside, WIDTH)


@triton.jit
def _convolved(old, newest, factors, WIDTH: tl.constexpr):
    """silu of the convolution, in float32."""
    total = newest.to(tl.float32) * factors[WIDTH - 1].to(tl.float32)
    for tap in tl.static_range(WIDTH - 1):
        total += old[tap].to(tl.float32) * factors[tap].to(tl.float32)
    return total * sigmoid(total)


@triton.jit
def _move_on(line, old, newest, channels, inside, C: tl.constexpr, WIDTH: tl.constexpr):
    """Write the inputs that the next token will find."""
    for tap in tl.static_range(1, WIDTH - 1):
        tl.store(line + (tap - 1) * C + channels, old[tap], mask=inside)
    if WIDTH > 1:
        tl.store(line + (WIDTH - 2) * C + channels, newest, mask=inside)


@triton.jit
def _query_and_key(both, is_key, scale, eps, dtype: tl.constexpr):
    """Both at their length, from two lines [2, Dk]; rounded as the separate kernels round."""
    length = tl.rsqrt(tl.sum(both * both, 1) + eps)[:, None] * tl.where(is_key, 1.0, scale)
    both = (both * length).to(dtype).to(tl.float32)
    return tl.sum(tl.where(is_key, 0.0, both), 0), tl.sum(tl.where(is_key, both, 0.0), 0)


@triton.jit
def _norm_and_gate(o, z, weight, eps, DV: tl.constexpr):
    """Of heads' results [N, Dv]; rounded before the weight, as the reference rounds."""
    wide, gate = o.to(tl.float32), z.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 1) / DV + eps)
    normal = (wide * inverse[:, None]).to(o.dtype)
    return ((normal * weight).to(tl.float32) * gate * sigmoid(gate)).to(o.dtype)


@triton.jit
def _advanced(state, q, k, v, beta, g):
    """The state a token on, and what its query finds."""
    state = state * tl.exp(g)
    error = beta * (v - tl.sum(k[:, None] * state, 0))
    state += k[:, None] * error[None, :]
    return state, tl.sum(q[:, None] * state, 0)


@triton.jit
def _results_of(
    key, HK: tl.constexpr, HV: tl.constexpr, DV: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_V: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """The value heads of a key head, whose results the last program of them ends.

    Where they are, which are there, and their columns.
    """
    members = tl.arange(0, GROUP)
    heads = members * HK + key if TILED else key * (HV // HK) + members
    dims = tl.arange(0, BLOCK_V)[None, :]
    return heads[:, None] * DV + dims, (members < HV // HK)[:, None] & (dims < DV), dims


@triton.jit
def _leave_words(
    words, found, z, weight, first, size: tl.constexpr, COLUMNS: tl.constexpr, TABLE: tl.constexpr
):
    """Of columns of a row of `size`, gated, but not divided by their head's root mean square."""
    gate = z.to(tl.float32)
    gated = found * weight.to(tl.float32) * (gate * sigmoid(gate))
    store_run(words, gated, first, size // 32, COLUMNS, TABLE)


@triton.jit(do_not_specialize_on_alignment=["rows"])
def _step_kernel(
    projected, taps, conv, decay, dt_bias, states, norm, rows, arrivals, out, squares,
    token_stride, conv_stride, state_stride, scale, key_eps, eps,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, C: tl.constexpr,
    WIDTH: tl.constexpr, TILED: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    COLUMNS: tl.constexpr, GROUP: tl.constexpr, WORDS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Program (columns of the state, value head, lane).

    With WORDS, `out` are those of `PartWords`, `squares` too, and a program is one warp.
    """
    part, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    keys = tl.arange(0, BLOCK_K)
    in_key = keys < DK
    key = key_head(head, HK, HV, TILED)
    # A query and its key are two lines of one tile.
    is_key = tl.arange(0, 2)[:, None] == 1
    qk_channels = tl.where(is_key, HK * DK, 0) + key * DK + keys[None, :]
    in_both = in_key[None, :] & (is_key | True)
    # The step's rows and this layer's states are older than some operation of PyTorch's in this
    # step, which no kernel overtakes: they may be read before the kernels ahead are done.
    slot = tl.load(rows + lane).to(tl.int64)
    store = states + slot * state_stride + head * (DK * DV)
    values = part * COLUMNS + tl.arange(0, COLUMNS)
    in_value = values < DV
    cells = keys[:, None] * DV + values[None, :]
    within = in_key[:, None] & in_value[None, :]
    state = tl.load(store + cells, mask=within, other=0.0)
    line = conv + slot * conv_stride
    v_channels = 2 * HK * DK + head * DV + values
    qk_old, qk_factors = _taps_of(line, taps, qk_channels, in_both, C, WIDTH)
    v_old, v_factors = _taps_of(line, taps, v_channels, in_value, C, WIDTH)
    bias, speed = tl.load(dt_bias + head), tl.load(decay + head)
    if WORDS:
        at, ends, dims = head * DV + values, in_value, values
    else:
        at, ends, dims = _results_of(key, HK, HV, DV, GROUP, BLOCK_V, TILED)
    weight = tl.load(norm + dims, mask=dims < DV, other=0.0)
    wait_for_inputs()
    token = projected + lane * token_stride
    qk_new = tl.load(token + qk_channels, mask=in_both, other=0.0)
    v_new = tl.load(token + v_channels, mask=in_value, other=0.0)
    gates = token + (C + HV * DV) + head
    beta, g = gate_of(tl.load(gates)), log_decay(tl.load(gates + HV), bias, speed)
    z = tl.load(token + C + at, mask=ends, other=0.0)
    dtype: tl.constexpr = projected.dtype.element_ty
    both = _convolved(qk_old, qk_new, qk_factors, WIDTH)
    arrival = arrivals + lane * HK + key
    lanes = tl.arange(0, 32)
    if WORDS:
        # What comes of it is looked at only in the end.
        arrived = tl.atomic_add(arrival + lanes, 1, mask=lanes == 0, sem="release")
    q, k = _query_and_key(both, is_key, scale, key_eps, dtype)
    v = _convolved(v_old, v_new, v_factors, WIDTH).to(dtype).to(tl.float32)
    state, found = _advanced(state, q, k, v, beta, g)
    everyone = tl.num_programs(0) * (HV // HK) - 1
    results = out + lane * (HV * DV)
    if WORDS:
        words = out + lane * ((16 + 64 // COLUMNS) * (HV * DV // 32))
        _leave_words(words, found, z, weight, head * DV + part * COLUMNS, HV * DV, COLUMNS, TABLE)
        tl.store(squares + (lane * HV + head) * (DV // COLUMNS) + part, tl.sum(found * found, 0))
        is_last = tl.max(tl.where(lanes == 0, arrived, 0), 0) == everyone
    else:
        tl.store(results + head * DV + values, found.to(dtype), mask=in_value)
        # All threads have written, and read the old inputs, before one of them says so.
        tl.debug_barrier()
        is_last = tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == everyone
    # After it, so that it does not wait for what no other program reads.
    tl.store(store + cells, state, mask=within)
    _move_on(line, v_old, v_new, v_channels, in_value, C, WIDTH)
    if is_last:
        tl.store(arrival, 0)
        _move_on(line, qk_old, qk_new, qk_channels, in_both, C, WIDTH)
        if not WORDS:
            # Past this multiprocessor's own cache: other ones wrote it.
            o = tl.load(results + at, mask=ends, other=0.0, cache_modifier=".cg")
            tl.store(results + at, _norm_and_gate(o, z, weight, eps, DV), mask=ends)


def step_refusal(shape: DeltaShape) -> str | None:
    """Why such layers cannot be advanced in one kernel, or None."""
    if shape.num_key_heads > MOST_KEY_HEADS:
        return f"made for up to {MOST_KEY_HEADS} key heads"
    if _cells(shape) > _MOST_STATE:
        return f"made for states of up to {_MOST_STATE} numbers a head"
    return None


def leaves_words(shape: DeltaShape) -> bool:
    """Whether such layers' results can be words: a program makes half of a group."""
    is_whole = shape.value_head_dim % GROUP == 0
    return is_whole and power_of_two(shape.key_head_dim) * _WORD_COLUMNS <= 32 * _THREAD_ELEMENTS


def _cells(shape: DeltaShape) -> int:
    return power_of_two(shape.key_head_dim) * power_of_two(shape.value_head_dim)


class MakesWords(Protocol):
    """Advances the sequences of a step that is nothing but single tokens."""

    def __call__(
        self,
        projected: torch.Tensor,
        layer: tuple[DeltaShape, DeltaWeights, LayerState],
        tensors: AttentionTensors,
        *,
        order: bool,
    ) -> PartWords:
        """Their results as words for the next product.

        Args:
            projected: see `ops.gated_delta.GatedDelta`; contiguous rows.
            layer: geometry that `leaves_words` accepts, parameters, states to advance.
            tensors: of the step.
            order: of the words: tables' or the plain one.
        """


class OneTokenKernel:
    """Advances sequences that have one token each.

    Args:
        lanes: most sequences of a step.
        device: where.
    """

    def __init__(self, lanes: int, device: torch.device) -> None:
        self._lanes = lanes
        # Programs of a lane and key head that have read the convolution's inputs; 0 between.
        self.arrivals = torch.zeros(lanes * MOST_KEY_HEADS, dtype=torch.int32, device=device)

    def __call__(
        self,
        projected: torch.Tensor,
        shape: DeltaShape,
        weights: DeltaWeights,
        state: LayerState,
        tensors: AttentionTensors,
        out: torch.Tensor,
    ) -> None:
        """The leading sequences of a step.

        Args:
            projected: see `ops.gated_delta.GatedDelta`; contiguous rows.
            shape: geometry, which `step_refusal` accepts.
            weights: parameters.
            state: advanced.
            tensors: of the step.
            out: [T, Hv * Dv]; the sequences' rows are written.
        """
        self._launch(projected, (shape, weights, state), tensors, (out, out), None)

    def ways_to_words(
        self, projected: torch.Tensor, shape: DeltaShape, state: LayerState
    ) -> Iterator[tuple[str, MakesWords]]:
        """Kernels for such a layer and their names, the fastest first."""
        if delta_words.refusal(shape, projected, state) is None and kernel_refusal() is None:
            yield "delta_words", self._hopper_words
        yield "gated_delta_step", self._words

    def _words(
        self,
        projected: torch.Tensor,
        layer: tuple[DeltaShape, DeltaWeights, LayerState],
        tensors: AttentionTensors,
        *,
        order: bool,
    ) -> PartWords:
        made = _empty_words(projected, layer)
        self._launch(projected, layer, tensors, (made.words, made.squares), order)
        return made

    def _hopper_words(
        self,
        projected: torch.Tensor,
        layer: tuple[DeltaShape, DeltaWeights, LayerState],
        tensors: AttentionTensors,
        *,
        order: bool,
    ) -> PartWords:
        made = _empty_words(projected, layer)
        results = made.words, made.squares
        delta_words.advance(projected, layer, tensors, results, self.arrivals, order=order)
        return made

    def _launch(
        self,
        projected: torch.Tensor,
        layer: tuple[DeltaShape, DeltaWeights, LayerState],
        tensors: AttentionTensors,
        results: tuple[torch.Tensor, torch.Tensor],
        order: bool | None,
    ) -> None:
        shape, weights, state = layer
        assert tensors.num_decode <= self._lanes
        columns = min(_COLUMNS, power_of_two(shape.value_head_dim))
        if order is not None:
            columns = _WORD_COLUMNS
        block_k = power_of_two(shape.key_head_dim)
        parts = triton.cdiv(shape.value_head_dim, columns)
        _step_kernel[(parts, shape.num_value_heads, tensors.num_decode)](
            projected, weights.conv, state.conv, weights.decay, weights.dt_bias, state.recurrent,
            weights.norm, tensors.rows, self.arrivals, *results,
            projected.stride(0), state.conv.stride(0), state.recurrent.stride(0),
            shape.key_head_dim**-0.5, KEY_EPS, weights.eps,
            HK=shape.num_key_heads, HV=shape.num_value_heads, DK=shape.key_head_dim,
            DV=shape.value_head_dim, C=shape.channels, WIDTH=shape.conv_width, TILED=shape.is_tiled,
            BLOCK_K=block_k, BLOCK_V=power_of_two(shape.value_head_dim),
            COLUMNS=columns,
            GROUP=power_of_two(shape.num_value_heads // shape.num_key_heads),
            WORDS=order is not None, TABLE=bool(order),
            num_warps=max(1, block_k * columns // (32 * _THREAD_ELEMENTS)), **LAUNCH,
        )  # fmt: skip


def _empty_words(
    projected: torch.Tensor, layer: tuple[DeltaShape, DeltaWeights, LayerState]
) -> PartWords:
    shape, weights, _ = layer
    sizes = len(projected), shape.value_size, shape.num_value_heads
    return PartWords.empty(sizes, _WORD_COLUMNS, weights.eps, projected.device)
