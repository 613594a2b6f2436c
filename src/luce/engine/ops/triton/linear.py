"""Matrix products on a device: our own kernel for few rows, the vendor's BLAS for more.

At one row a product only reads its weight. The vendor's kernels reach 84 % of the copy bandwidth
there; this one 93 % (H200, bfloat16, shapes of an 8B model; `docs/lab/gpu.md`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from luce.engine.ops.triton.numeric import power_of_two

FEW_ROWS = 4
_BLOCK_OUT = 4
_BLOCK_IN = 1024


@triton.jit
def _few_rows_kernel(
    x,
    weight,
    bias,
    residual,
    out,
    num_rows,
    size_in,
    size_out,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    """Program: a few rows of the weight against all rows of x."""
    rows = tl.arange(0, ROWS)
    outs = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    total = tl.zeros((ROWS, BLOCK_OUT, BLOCK_IN), tl.float32)
    lines = weight + outs.to(tl.int64)[None, :, None] * size_in
    for first in range(0, size_in, BLOCK_IN):
        ins = first + tl.arange(0, BLOCK_IN)
        inside = ins < size_in
        w = tl.load(
            lines + ins[None, None, :],
            mask=(outs < size_out)[None, :, None] & inside[None, None, :],
            other=0.0,
        )
        v = tl.load(
            x + rows[:, None, None] * size_in + ins[None, None, :],
            mask=(rows < num_rows)[:, None, None] & inside[None, None, :],
            other=0.0,
        )
        total += w.to(tl.float32) * v.to(tl.float32)
    result = tl.sum(total, 2)
    places = rows[:, None] * size_out + outs[None, :]
    there = (rows < num_rows)[:, None] & (outs < size_out)[None, :]
    if HAS_BIAS:
        result += tl.load(bias + outs, mask=outs < size_out, other=0.0).to(tl.float32)[None, :]
    if HAS_RESIDUAL:
        result += tl.load(residual + places, mask=there, other=0.0).to(tl.float32)
    tl.store(out + places, result.to(out.dtype.element_ty), mask=there)


@dataclass(frozen=True, slots=True)
class DeviceLinear:
    """`ops.linear.Linear` over the weight as it is, [out, in] contiguous."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] → [T, out]."""
        if x.shape[0] > FEW_ROWS:
            return F.linear(x, self.weight, self.bias)
        return self._few_rows(x, None)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y, in place; rounded once, after the sum."""
        if x.shape[0] <= FEW_ROWS:
            return self._few_rows(x, residual)
        if self.bias is not None:
            residual.add_(self.bias)
        return torch.addmm(residual, x, self.weight.t(), out=residual)

    def _few_rows(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        rows, (size_out, size_in) = x.shape[0], self.weight.shape
        out = residual
        if out is None:
            out = torch.empty(rows, size_out, dtype=x.dtype, device=x.device)
        _few_rows_kernel[(triton.cdiv(size_out, _BLOCK_OUT),)](
            x,
            self.weight,
            self.bias,
            residual,
            out,
            rows,
            size_in,
            size_out,
            HAS_BIAS=self.bias is not None,
            HAS_RESIDUAL=residual is not None,
            ROWS=power_of_two(rows),
            BLOCK_OUT=_BLOCK_OUT,
            BLOCK_IN=min(_BLOCK_IN, power_of_two(size_in)),
            num_warps=4,
        )
        return out

    def holds(self, weight: torch.Tensor) -> bool:
        """Whether this is its weight."""
        return self.weight is weight

    @property
    def nbytes(self) -> int:
        """Memory of weight and bias."""
        return self.weight.nbytes + (self.bias.nbytes if self.bias is not None else 0)
