"""RMS normalisation: one program a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs


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
