"""The gated delta rule over runs of tokens, in chunks of 64 by matrix products.

Of a chunk with decays g, gates beta, G the running sum of g and L[i, j] = exp(G_i - G_j) for
j <= i, one kernel makes for all chunks side by side

    A = I + strictly lower (beta_i k_i . k_j L_ij)
    U = A^-1 (beta V);  W = A^-1 (beta exp(G) K);  P = lower (Q K^T L)

and another, for each head's columns, goes from chunk to chunk with the state S in registers:

    V' = U - W S;  O = exp(G) Q S + P V';  S <- exp(G_last) S + (exp(G_last - G) K)^T V'

Sums and the state are float32; operands of products are rounded to the activations' type.
Source: Yang et al., "Gated Delta Networks", 2024, and "Parallelizing Linear Transformers with the
Delta Rule", 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights
from luce.engine.ops.triton.causal_conv import leave_tail
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import (
    INTERPRETED,
    LAUNCH,
    dot,
    power_of_two,
    sigmoid,
    wait_for_inputs,
)

CHUNK = 64
"""Tokens that are computed together."""
_SUB = 16
_PRECISION = "tf32"
"""Of the inverse's products, for narrow types: it is rounded to one of them in the end."""
_COLUMNS = 32
_TAIL_CHANNELS = 512
"""Of a program that leaves a run's last inputs."""


@triton.jit
def log_decay(a, dt_bias, decay):
    """g = decay * softplus(a + dt_bias), in float32."""
    x = a.to(tl.float32) + dt_bias
    return decay * tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def gate_of(beta):
    """sigmoid, rounded as the activations are."""
    return sigmoid(beta.to(tl.float32)).to(beta.dtype).to(tl.float32)


@triton.jit
def key_head(head, HK: tl.constexpr, HV: tl.constexpr, TILED: tl.constexpr):
    """The key head that a value head goes with."""
    if TILED:
        return head % HK
    return head // (HV // HK)


@triton.jit
def _product(left, right, PRECISION: tl.constexpr):
    return tl.dot(left, right, input_precision=PRECISION)


@triton.jit
def _inverse(a, CHUNK: tl.constexpr, SUB: tl.constexpr, PRECISION: tl.constexpr):
    """(I + a)^-1 for a strictly lower triangular, f32 [CHUNK, CHUNK], CHUNK = 4 SUB.

    Blocks on the diagonal by substitution, row by row and all at once; then those below by
    products. Powers of the whole of `a` would cancel: its rows are alike where tokens repeat.
    """
    blocks: tl.constexpr = CHUNK // SUB
    row, column = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    identity = tl.where(row == column, 1.0, 0.0)
    block = tl.arange(0, blocks)
    same = block[:, None, None, None] == block[None, None, :, None]
    diagonal = tl.sum(tl.where(same, tl.reshape(a, (blocks, SUB, blocks, SUB)), 0.0), 2)
    solved = -diagonal
    inner = tl.arange(0, SUB)
    for i in range(1, SUB):
        here = (inner == i)[None, :, None]
        line = tl.sum(tl.where(here, solved, 0.0), 1)
        line += tl.sum(line[:, :, None] * solved, 1)
        solved = tl.where(here, line[:, None, :], solved)
    spread = tl.where(same, solved[:, :, None, :], 0.0)
    outer = tl.reshape(spread, (CHUNK, CHUNK)) + identity
    below = tl.where(row // SUB > column // SUB, a, 0.0)
    step = _product(outer, below, PRECISION)
    square = _product(step, step, PRECISION)
    left = identity - step
    return _product(left + _product(left, square, PRECISION), outer, PRECISION)


@direct
@triton.jit(
    do_not_specialize=["first_sequence"],
    do_not_specialize_on_alignment=["rows", "query_starts"],
)
def _chunk_kernel(
    mixed, projected, decay, dt_bias, w, u, p, sums, tails, rows, query_starts, first_sequence,
    token_stride, tail_stride, WIDTH: tl.constexpr, TAIL: tl.constexpr,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, C: tl.constexpr,
    TILED: tl.constexpr, CHUNK: tl.constexpr, SUB: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (value head, chunk, sequence): W, U, P and G of one chunk.

    Those behind the last head leave the convolution's last inputs.
    """
    head, sequence = tl.program_id(0), first_sequence + tl.program_id(2)
    start = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - start
    wait_for_inputs()
    if tl.program_id(1) * CHUNK >= count:
        return
    if head >= HV:
        if tl.program_id(1) == 0:
            channels = (head - HV) * TAIL + tl.arange(0, TAIL)
            row = tl.load(rows + sequence)
            leave_tail(
                projected, tails, row, start, count, channels, token_stride, tail_stride, C, WIDTH
            )
        return
    index = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    real = index < count
    tokens = (start + index).to(tl.int64)
    heads = projected + tokens * token_stride + (C + HV * DV) + head
    beta = tl.where(real, gate_of(tl.load(heads, mask=real, other=0.0)), 0.0)
    a = tl.load(heads + HV, mask=real, other=0.0)
    g = log_decay(a, tl.load(dt_bias + head), tl.load(decay + head))
    total = tl.cumsum(tl.where(real, g, 0.0), 0)
    tl.store(sums + tokens * HV + head, total, mask=real)

    keys = tl.arange(0, BLOCK_K)
    there = real[:, None] & (keys < DK)[None, :]
    at = mixed + tokens[:, None] * C + key_head(head, HK, HV, TILED) * DK + keys[None, :]
    q = tl.load(at, mask=there, other=0.0)
    k = tl.load(at + HK * DK, mask=there, other=0.0)

    row, column = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    # Masked before the exponential: above the diagonal it could overflow.
    kept = tl.exp(tl.where(row >= column, total[:, None] - total[None, :], 0.0))
    zero = tl.zeros((CHUNK, CHUNK), tl.float32)
    both = tl.where(row >= column, dot(q, tl.trans(k), zero) * kept, 0.0)
    place = (tokens * HV + head)[:, None]
    tl.store(p + place * CHUNK + column, both.to(p.dtype.element_ty), mask=real[:, None])
    lower = dot(k, tl.trans(k), zero) * kept * beta[:, None]
    inverse = _inverse(tl.where(row > column, lower, 0.0), CHUNK, SUB, PRECISION).to(k.dtype)
    # Values are read, and keys once more, only now: there are too few registers to keep them.
    values = tl.arange(0, BLOCK_V)
    seen = real[:, None] & (values < DV)[None, :]
    line = mixed + tokens[:, None] * C + (2 * HK * DK + head * DV) + values[None, :]
    v = tl.load(line, mask=seen, other=0.0)
    gated = (v.to(tl.float32) * beta[:, None]).to(v.dtype)
    corrected = dot(inverse, gated, tl.zeros((CHUNK, BLOCK_V), tl.float32))
    tl.store(u + place * DV + values[None, :], corrected.to(u.dtype.element_ty), mask=seen)
    again = tl.load(at + HK * DK, mask=there, other=0.0, volatile=True)
    decayed = (again.to(tl.float32) * (beta * tl.exp(total))[:, None]).to(again.dtype)
    read = dot(inverse, decayed, tl.zeros((CHUNK, BLOCK_K), tl.float32))
    tl.store(w + place * DK + keys[None, :], read.to(w.dtype.element_ty), mask=there)


@direct
@triton.jit(
    do_not_specialize=["first_sequence"],
    do_not_specialize_on_alignment=["rows", "query_starts"],
)
def _scan_kernel(
    mixed, w, u, p, sums, states, rows, query_starts, out, first_sequence, state_stride,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, C: tl.constexpr,
    TILED: tl.constexpr, CHUNK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Program (columns of the state, value head, sequence): chunk after chunk."""
    head, sequence = tl.program_id(1), first_sequence + tl.program_id(2)
    start = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - start
    keys = tl.arange(0, BLOCK_K)
    values = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    cells = head * (DK * DV) + keys[:, None] * DV + values[None, :]
    store = states + tl.load(rows + sequence).to(tl.int64) * state_stride + cells
    within = (keys < DK)[:, None] & (values < DV)[None, :]
    # As in `gated_delta._step_kernel`: older than all that runs beside this.
    state = tl.load(store, mask=within & (count > 0), other=0.0)
    wait_for_inputs()
    if count <= 0:
        return
    first_query = mixed + key_head(head, HK, HV, TILED) * DK + keys[None, :]
    for first in range(0, count, CHUNK):
        index = first + tl.arange(0, CHUNK)
        real = index < count
        tokens = (start + index).to(tl.int64)
        place = (tokens * HV + head)[:, None]
        there = real[:, None] & (keys < DK)[None, :]
        seen = real[:, None] & (values < DV)[None, :]
        total = tl.load(sums + tokens * HV + head, mask=real, other=0.0)
        last = tl.load(sums + (start + min(first + CHUNK, count) - 1).to(tl.int64) * HV + head)
        narrow = state.to(w.dtype.element_ty)
        read = tl.load(w + place * DK + keys[None, :], mask=there, other=0.0)
        zero = tl.zeros((CHUNK, BLOCK_V), tl.float32)
        new = tl.load(u + place * DV + values[None, :], mask=seen, other=0.0).to(tl.float32)
        new -= dot(read, narrow, zero)
        q = tl.load(first_query + tokens[:, None] * C, mask=there, other=0.0)
        old_part = dot(q, narrow, zero) * tl.exp(total)[:, None]
        column = tl.arange(0, CHUNK)
        both = tl.load(p + place * CHUNK + column[None, :], mask=real[:, None], other=0.0)
        result = dot(both, new.to(both.dtype), old_part)
        target = out + tokens[:, None] * (HV * DV) + head * DV + values[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=seen)
        k = tl.load(first_query + tokens[:, None] * C + HK * DK, mask=there, other=0.0)
        # Of tokens that are not there `total` is 0 and the exponential may be small, never large.
        aged = (new * tl.exp(last - total)[:, None]).to(k.dtype)
        state = dot(tl.trans(k), aged, state * tl.exp(last))
    tl.store(store, state, mask=within)


@dataclass(frozen=True, slots=True)
class DeltaStep:
    """What a layer computes between its convolution and its norm.

    Attributes:
        mixed: [T, C], convolved; queries and keys have their length.
        projected: [T, C + Hv*Dv + 2*Hv], for beta and decay.
        shape: geometry.
        weights: decay's.
        states: f32 [S, Hv * Dk * Dv], rows of any stride; advanced in place.
        tails: [S, (W-1) * C], last inputs of the convolution, likewise.
        tensors: the step's rows and tokens.
        out: [T, Hv * Dv], to be written.
    """

    mixed: torch.Tensor
    projected: torch.Tensor
    shape: DeltaShape
    weights: DeltaWeights
    states: torch.Tensor
    tails: torch.Tensor
    tensors: AttentionTensors
    out: torch.Tensor


def run_chunks(step: DeltaStep) -> None:
    """Advance all sequences behind the first `tensors.num_decode` by their tokens.

    The convolution's kernel for them is done with what it left the last time.
    """
    mixed, projected, shape, tensors = step.mixed, step.projected, step.shape, step.tensors
    weights, states, out = step.weights, step.states, step.out
    tokens, heads = len(mixed), shape.num_value_heads
    dim_k, dim_v = shape.key_head_dim, shape.value_head_dim
    first, dtype = tensors.num_decode, mixed.dtype
    sequences = tensors.rows.shape[0] - first
    w, u, p = (mixed.new_empty(tokens, heads, size) for size in (dim_k, dim_v, CHUNK))
    sums = torch.empty(tokens, heads, dtype=torch.float32, device=mixed.device)
    is_wide = dtype == torch.float32
    sizes = {
        "HK": shape.num_key_heads,
        "HV": heads,
        "DK": dim_k,
        "DV": dim_v,
        "C": shape.channels,
        "TILED": shape.is_tiled,
        "CHUNK": CHUNK,
        "BLOCK_K": power_of_two(dim_k, 16),
    }
    programs = heads + triton.cdiv(shape.channels, _TAIL_CHANNELS)
    _chunk_kernel[(programs, triton.cdiv(tensors.max_queries, CHUNK), sequences)](
        mixed, projected, weights.decay, weights.dt_bias, w, u, p, sums, step.tails,
        tensors.rows, tensors.query_starts, first, projected.stride(0), step.tails.stride(0),
        WIDTH=shape.conv_width, TAIL=_TAIL_CHANNELS, **sizes, SUB=_SUB,
        BLOCK_V=power_of_two(dim_v, 16),
        PRECISION="ieee" if is_wide or INTERPRETED.value else _PRECISION,
        num_warps=4, num_stages=1, **LAUNCH,
    )  # fmt: skip
    columns = min(_COLUMNS, power_of_two(dim_v, 16))
    _scan_kernel[(triton.cdiv(dim_v, columns), heads, sequences)](
        mixed, w, u, p, sums, states, tensors.rows, tensors.query_starts, out,
        first, states.stride(0),
        **sizes, BLOCK_V=columns,
        num_warps=4, num_stages=1 if is_wide else 2, **LAUNCH,
    )  # fmt: skip
