"""The gate of a SwiGLU block, of rows that were normalised before their product or were not."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs
from luce.engine.ops.triton.rms_norm import FACTOR_WARPS, row_factor

_BLOCK = 1024
_PROGRAMS = 1024
"""Each reads a row of x; where there would be more than this, it does two blocks of the result."""


@triton.jit
def _scaled_gate(gate, up, factor):
    """silu(f * gate) * f * up in float32."""
    wide = gate.to(tl.float32) * factor
    return wide / (1.0 + tl.exp(-wide)) * (up.to(tl.float32) * factor)


@direct
@triton.jit
def _gate_kernel(gate_up, factors, out, size, IS_SCALED: tl.constexpr, BLOCK: tl.constexpr):
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    gate = tl.load(gate_up + token * 2 * size + index, mask=inside, other=0.0)
    up = tl.load(gate_up + token * 2 * size + size + index, mask=inside, other=0.0)
    if IS_SCALED:
        product = _scaled_gate(gate, up, tl.load(factors + token)).to(up.dtype)
    else:
        wide = gate.to(tl.float32)
        product = (wide / (1.0 + tl.exp(-wide))).to(up.dtype) * up
    tl.store(out + token * size + index, product, mask=inside)


def silu_and_mul(gate_up: torch.Tensor, factors: torch.Tensor | None = None) -> torch.Tensor:
    """`ops.pointwise.SiluAndMul` for a contiguous input.

    Args:
        gate_up: [T, 2F].
        factors: f32 [T] that both are multiplied by first; the result is rounded once then.
    """
    tokens, width = gate_up.shape
    size = width // 2
    out = torch.empty(tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    grid = (tokens, triton.cdiv(size, _BLOCK))
    is_scaled = factors is not None
    _gate_kernel[grid](
        gate_up, factors, out, size, IS_SCALED=is_scaled, BLOCK=_BLOCK, num_warps=4, **LAUNCH
    )
    return out


@direct
@triton.jit
def _normed_gate_kernel(
    gate_up, x, out, size, eps, SIZE_IN: tl.constexpr, BLOCK_IN: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (token, run of blocks): computes the row's factor first."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    gates = gate_up + token * 2 * size
    index = tl.program_id(1) * (BLOCKS * BLOCK) + tl.arange(0, BLOCK)
    # On their way while the factor is computed, as is each next block meanwhile.
    gate = tl.load(gates + index, mask=index < size, other=0.0)
    up = tl.load(gates + size + index, mask=index < size, other=0.0)
    factor = row_factor(x + token * SIZE_IN, eps, SIZE_IN, BLOCK_IN)
    for i in range(BLOCKS):
        after = index + BLOCK
        more = (after < size) & (i + 1 < BLOCKS)
        next_gate = tl.load(gates + after, mask=more, other=0.0)
        next_up = tl.load(gates + size + after, mask=more, other=0.0)
        product = _scaled_gate(gate, up, factor).to(up.dtype)
        tl.store(out + token * size + index, product, mask=index < size)
        gate, up, index = next_gate, next_up, after


def normed_silu_and_mul(gate_up: torch.Tensor, x: torch.Tensor, eps: float) -> torch.Tensor:
    """The gate of a product of rows that were not normalised.

    Args:
        gate_up: [T, 2F], W x with the norm's weight in the columns of W.
        x: [T, hidden], contiguous.
        eps: added to the mean square of each row of x.

    Returns:
        silu(f * gate) * f * up, [T, F], with f = rsqrt(mean(x^2) + eps); rounded once.
    """
    tokens, width = gate_up.shape
    size, size_in = width // 2, x.shape[1]
    out = torch.empty(tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    blocks = 1 + (tokens * triton.cdiv(size, _BLOCK) > _PROGRAMS)
    _normed_gate_kernel[(tokens, triton.cdiv(size, blocks * _BLOCK))](
        gate_up,
        x,
        out,
        size,
        eps,
        SIZE_IN=size_in,
        BLOCK_IN=power_of_two(size_in),
        BLOCKS=blocks,
        BLOCK=_BLOCK,
        num_warps=FACTOR_WARPS,
        **LAUNCH,
    )
    return out
