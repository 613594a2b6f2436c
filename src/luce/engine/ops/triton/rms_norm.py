"""RMS normalisation: one program a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs

FACTOR_WARPS = 4
"""Of all kernels that compute a row's factor: the order of the sum depends on it."""


@triton.jit
def row_factor(row, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """rsqrt(mean(x^2) + eps) of a row of SIZE numbers; BLOCK is the next power of two."""
    index = tl.arange(0, BLOCK)
    if SIZE == BLOCK:
        wide = tl.load(row + index).to(tl.float32)
    else:
        wide = tl.load(row + index, mask=index < SIZE, other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)


@direct
@triton.jit
def _norm_kernel(x, weight, out, x_stride, size, eps, BLOCK: tl.constexpr):
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < size
    wide = tl.load(x + token * x_stride + index, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    # Rounded before the weight, as `ops.pointwise.RmsNorm` has it.
    normal = (wide * scale).to(out.dtype.element_ty)
    product = normal * tl.load(weight + index, mask=inside, other=0.0)
    tl.store(out + token * size + index, product, mask=inside)


@direct
@triton.jit
def _factor_kernel(x, out, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    tl.store(out + token, row_factor(x + token * SIZE, eps, SIZE, BLOCK))


def row_factors(x: torch.Tensor, eps: float) -> torch.Tensor:
    """rsqrt(mean(x^2) + eps) of each row of x [T, size], contiguous: f32 [T]."""
    tokens, size = x.shape
    out = torch.empty(tokens, dtype=torch.float32, device=x.device)
    _factor_kernel[(tokens,)](
        x, out, eps, SIZE=size, BLOCK=power_of_two(size), num_warps=FACTOR_WARPS, **LAUNCH
    )
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`ops.pointwise.RmsNorm` for x [T, size] with contiguous rows."""
    tokens, size = x.shape
    out = torch.empty(tokens, size, dtype=x.dtype, device=x.device)
    block = power_of_two(size)
    warps = min(16, max(1, block // 512))
    _norm_kernel[(tokens,)](
        x, weight, out, x.stride(0), size, eps, BLOCK=block, num_warps=warps, **LAUNCH
    )
    return out
