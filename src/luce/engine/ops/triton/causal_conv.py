"""The causal depthwise convolution of gated DeltaNet, its silu, and the length of queries and keys.

A sequence's last inputs stay in its slot. A step of one token reads and shifts them in one kernel;
runs of tokens are convolved by one kernel and leave their last inputs by a later one
(`gated_delta_chunk`), since programs of the first still read the old ones.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.gated_delta import DeltaShape
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, sigmoid, wait_for_inputs

KEY_EPS = 1e-6
"""Added to the squared length of a query or key."""
_TILE = 16


@triton.jit
def _place(head, HK: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr):
    """First channel and size of a head: queries', then keys', then values'."""
    first = tl.where(head < 2 * HK, head * DK, 2 * HK * DK + (head - 2 * HK) * DV)
    return first, tl.where(head < 2 * HK, DK, DV)


@triton.jit
def _scaled(x, head, scale, eps, HK: tl.constexpr):
    """x [N, D]: keys of length 1, queries of length `scale`, values as they are."""
    inverse = tl.rsqrt(tl.sum(x * x, 1) + eps)
    inverse *= tl.where(head < HK, scale, 1.0)
    return x * tl.where(head < 2 * HK, inverse, 1.0)[:, None]


@direct
@triton.jit(do_not_specialize_on_alignment=["rows"])
def _step_kernel(
    projected, taps, states, rows, out, token_stride, state_stride, scale, eps,
    HK: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (head, lane): one token; the head's part of the state moves on by it."""
    head, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first, size = _place(head, HK, DK, DV)
    dims = tl.arange(0, BLOCK)[None, :]
    inside = dims < size
    channels = first + dims
    # The step's rows and this layer's states are older than some operation of PyTorch's in this
    # step, which no kernel overtakes: they may be read before the kernels ahead are done.
    line = states + tl.load(rows + lane).to(tl.int64) * state_stride + channels
    old = ()
    for tap in tl.static_range(WIDTH - 1):
        value = tl.load(line + tap * C, mask=inside, other=0.0)
        old = old + (value,)  # type: ignore[assignment]  # noqa: RUF005
    factors = ()
    for tap in tl.static_range(WIDTH):
        factor = tl.load(taps + channels * WIDTH + tap, mask=inside, other=0.0)
        factors = factors + (factor,)  # type: ignore[assignment]  # noqa: RUF005
    wait_for_inputs()
    newest = tl.load(projected + lane * token_stride + channels, mask=inside, other=0.0)
    total = newest.to(tl.float32) * factors[WIDTH - 1].to(tl.float32)
    for tap in tl.static_range(WIDTH - 1):
        total += old[tap].to(tl.float32) * factors[tap].to(tl.float32)
        if tap > 0:
            tl.store(line + (tap - 1) * C, old[tap], mask=inside)
    if WIDTH > 1:
        tl.store(line + (WIDTH - 2) * C, newest, mask=inside)
    result = _scaled(total * sigmoid(total), head, scale, eps, HK)
    tl.store(out + lane * C + channels, result.to(out.dtype.element_ty), mask=inside)


@direct
@triton.jit(
    do_not_specialize=["first_sequence"],
    do_not_specialize_on_alignment=["rows", "query_starts"],
)
def _run_kernel(
    projected, taps, states, rows, query_starts, out, first_sequence,
    token_stride, state_stride, scale, eps,
    HK: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (head, tile of tokens, sequence); the state is only read."""
    wait_for_inputs()
    head, sequence = tl.program_id(0), first_sequence + tl.program_id(2)
    start = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - start
    if tl.program_id(1) * TILE >= count:
        return
    index = tl.program_id(1) * TILE + tl.arange(0, TILE)
    first, size = _place(head, HK, DK, DV)
    dims = tl.arange(0, BLOCK)[None, :]
    inside = dims < size
    channels = first + dims
    line = states + tl.load(rows + sequence).to(tl.int64) * state_stride + channels
    total = tl.zeros((TILE, BLOCK), tl.float32)
    for tap in tl.static_range(WIDTH):
        source = (index - (WIDTH - 1) + tap)[:, None]
        at = projected + (start + source).to(tl.int64) * token_stride + channels
        given = tl.load(at, mask=inside & (source >= 0) & (source < count), other=0.0)
        value = given.to(tl.float32)
        if tap < WIDTH - 1:
            kept = line + (source + (WIDTH - 1)) * C
            value += tl.load(kept, mask=inside & (source < 0), other=0.0).to(tl.float32)
        factor = tl.load(taps + channels * WIDTH + tap, mask=inside, other=0.0)
        total += value * factor.to(tl.float32)
    result = _scaled(total * sigmoid(total), head, scale, eps, HK)
    target = out + (start + index).to(tl.int64)[:, None] * C + channels
    tl.store(target, result.to(out.dtype.element_ty), mask=inside & (index < count)[:, None])


@triton.jit
def leave_tail(
    projected, states, row, start, count, channels, token_stride, state_stride,
    C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Some channels of a run's last inputs, behind what it leaves of the old."""
    inside = channels < C
    line = states + row.to(tl.int64) * state_stride + channels
    for place in tl.static_range(WIDTH - 1):
        # Oldest first: what is read lies behind what was written.
        source = count - (WIDTH - 1) + place
        at = projected + (start + source).to(tl.int64) * token_stride + channels
        given = tl.load(at, mask=inside & (source >= 0), other=0.0)
        kept = tl.load(line + (count + place) * C, mask=inside & (source < 0), other=0.0)
        tl.store(line + place * C, tl.where(source >= 0, given, kept), mask=inside)


def convolve(
    projected: torch.Tensor,
    shape: DeltaShape,
    taps: torch.Tensor,
    states: torch.Tensor,
    tensors: AttentionTensors,
    *,
    only_runs: bool = False,
) -> torch.Tensor:
    """silu of the causal convolution; queries and keys are brought to their length.

    Args:
        projected: [T, >= C], rows of any stride.
        shape: geometry.
        taps: [C, W], oldest input first.
        states: [S, (W-1) * C], rows of any stride; advanced where a sequence has one token.
        tensors: the step's rows and tokens.
        only_runs: the leading sequences, of one token each, are left out.

    Returns:
        [T, C]: queries of length Dk ** -0.5, keys of length 1, values.
    """
    out = torch.empty(len(projected), shape.channels, dtype=projected.dtype, device=taps.device)
    block = power_of_two(max(shape.key_head_dim, shape.value_head_dim))
    num_heads = 2 * shape.num_key_heads + shape.num_value_heads
    scale = shape.key_head_dim**-0.5
    strides = projected.stride(0), states.stride(0)
    sizes = {
        "HK": shape.num_key_heads,
        "DK": shape.key_head_dim,
        "DV": shape.value_head_dim,
        "C": shape.channels,
        "WIDTH": shape.conv_width,
    }
    lanes, rows, starts = tensors.num_decode, tensors.rows, tensors.query_starts
    if lanes and not only_runs:
        _step_kernel[(num_heads, lanes)](
            projected, taps, states, rows, out, *strides, scale, KEY_EPS,
            **sizes, BLOCK=block, num_warps=1, **LAUNCH,
        )  # fmt: skip
    sequences = rows.shape[0] - lanes
    if sequences:
        _run_kernel[(num_heads, triton.cdiv(tensors.max_queries, _TILE), sequences)](
            projected, taps, states, rows, starts, out, lanes, *strides, scale, KEY_EPS,
            **sizes, TILE=_TILE, BLOCK=block, num_warps=4, **LAUNCH,
        )  # fmt: skip
    return out
