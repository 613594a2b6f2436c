"""The gate of a SwiGLU block."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, wait_for_inputs

_BLOCK = 1024


@direct
@triton.jit
def _gate_kernel(gate_up, out, size, BLOCK: tl.constexpr):
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    gate = tl.load(gate_up + token * 2 * size + index, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * 2 * size + size + index, mask=inside, other=0.0)
    silu = (gate / (1.0 + tl.exp(-gate))).to(up.dtype)
    tl.store(out + token * size + index, silu * up, mask=inside)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`ops.pointwise.SiluAndMul` for a contiguous input."""
    tokens, width = gate_up.shape
    size = width // 2
    out = torch.empty(tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    grid = (tokens, triton.cdiv(size, _BLOCK))
    _gate_kernel[grid](gate_up, out, size, BLOCK=_BLOCK, num_warps=4, **LAUNCH)
    return out
