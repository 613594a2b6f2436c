"""Matrix products on a device: our own kernel for few rows, the vendor's BLAS for more.

At one row a product only reads its weight. The vendor's kernels reach 84 % of the copy bandwidth
there; this one 94 %, norm and gate included (H200, bfloat16, 8B shapes; `docs/lab/gpu.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from luce.engine.ops.projection import NormWeight
from luce.engine.ops.triton.gated_mlp import silu_and_mul
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs

FEW_ROWS = 4
_MOST_ODD, _ALIGNED = 1025, 8
"""Results of an odd width, up to the first, have rows at multiples of the second."""
_BLOCK_OUT = 4
_BLOCK_IN = 1024
_WARPS = 4
_AHEAD = 2


@triton.jit
def _tile(base, mask, first, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Columns first .. first + BLOCK of some rows of a matrix of SIZE columns.

    Three axes from the start, as the product needs them: an axis added later would send the tile
    through shared memory.
    """
    index = first + tl.arange(0, BLOCK)
    if SIZE % BLOCK == 0:
        return tl.load(base + index[None, None, :], mask=mask, other=0.0)
    inside = mask & (index < SIZE)[None, None, :]
    return tl.load(base + index[None, None, :], mask=inside, other=0.0)


@direct
@triton.jit
def _few_rows_kernel(
    x, weight, bias, residual, norm_weight, out, eps, num_rows, size_out,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_FOLDED: tl.constexpr,
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Program: a few rows of the weight against all rows of x, axes [row, out, in].

    The first AHEAD tiles of the weight are under way before the kernel's inputs are there.
    """
    rows = tl.arange(0, ROWS)
    outs = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    there = (outs < size_out)[None, :, None]
    real = (rows < num_rows)[:, None, None]
    lines = weight + outs.to(tl.int64)[None, :, None] * SIZE_IN
    ups = lines + size_out.to(tl.int64) * SIZE_IN
    sources = x + rows[:, None, None] * SIZE_IN
    ahead = ()
    ahead_up = ()
    for i in tl.static_range(AHEAD):
        w = _tile(lines, there, i * BLOCK_IN, SIZE_IN, BLOCK_IN)
        ahead = ahead + (w,)  # type: ignore[assignment]  # noqa: RUF005
        if GATED:
            up = _tile(ups, there, i * BLOCK_IN, SIZE_IN, BLOCK_IN)
            ahead_up = ahead_up + (up,)  # type: ignore[assignment]  # noqa: RUF005
    wait_for_inputs()
    scale = tl.full((ROWS, 1), 1.0, tl.float32)
    if HAS_NORM or IS_FOLDED:
        square = tl.zeros((ROWS, 1, BLOCK_IN), tl.float32)
        for i in tl.static_range((SIZE_IN + BLOCK_IN - 1) // BLOCK_IN):
            v = _tile(sources, real, i * BLOCK_IN, SIZE_IN, BLOCK_IN).to(tl.float32)
            square += v * v
        scale = tl.rsqrt(tl.sum(square, 2) / SIZE_IN + eps)
    total = tl.zeros((ROWS, BLOCK_OUT, BLOCK_IN), tl.float32)
    total_up = tl.zeros((ROWS, BLOCK_OUT, BLOCK_IN), tl.float32)
    for i in tl.static_range((SIZE_IN + BLOCK_IN - 1) // BLOCK_IN):
        v = _tile(sources, real, i * BLOCK_IN, SIZE_IN, BLOCK_IN)
        if HAS_NORM:
            every = tl.full((1, 1, 1), 1, tl.int1)
            factor = _tile(norm_weight, every, i * BLOCK_IN, SIZE_IN, BLOCK_IN)
            # Rounded before the weight, as `ops.pointwise.RmsNorm` has it.
            v = (v.to(tl.float32) * scale[:, :, None]).to(x.dtype.element_ty) * factor
        wide = v.to(tl.float32)
        if IS_FOLDED:
            # The norm's weight is in this one. With the results one row is a sixth slower.
            wide *= scale[:, :, None]
        if i < AHEAD:
            w = ahead[i]
        else:
            w = _tile(lines, there, i * BLOCK_IN, SIZE_IN, BLOCK_IN)
        total += w.to(tl.float32) * wide
        if GATED:
            if i < AHEAD:
                up = ahead_up[i]
            else:
                up = _tile(ups, there, i * BLOCK_IN, SIZE_IN, BLOCK_IN)
            total_up += up.to(tl.float32) * wide
    result = tl.sum(total, 2)
    places = rows[:, None] * size_out + outs[None, :]
    mask = (rows < num_rows)[:, None] & (outs < size_out)[None, :]
    if HAS_BIAS:
        result += tl.load(bias + outs, mask=outs < size_out, other=0.0).to(tl.float32)[None, :]
    if HAS_RESIDUAL:
        result += tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)
    if GATED:
        # Rounded where the separate operations round.
        gate = result.to(out.dtype.element_ty).to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty)
        result = silu * tl.sum(total_up, 2).to(out.dtype.element_ty)
    tl.store(out + places, result.to(out.dtype.element_ty), mask=mask)


class RowsProducts(Protocol):
    """Products of dozens of rows by kernels of our own."""

    def adds(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether `add` is for such matrices, and serves here."""

    def add(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        """residual += x W^T, rounded once."""

    def gates(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether `gate` is for such matrices, and serves here."""

    def gate(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of x W^T, W being gate | up."""


@dataclass(frozen=True, slots=True)
class DeviceLinear:
    """`ops.linear.Linear` over the weight as it is, [out, in] contiguous.

    Attributes:
        weight: [out, in].
        bias: [out].
        rows: for dozens of rows, where there is such a way.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    rows: RowsProducts | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] → [T, out]."""
        if x.shape[0] <= FEW_ROWS:
            return self.few_rows(x)
        width = self.weight.shape[0]
        if width % 2 and width <= _MOST_ODD and self.bias is None:
            # A router and its shared expert's gate. Lines of an odd length keep the vendor from its
            # kernels of this generation.
            lines = x.new_empty(x.shape[0], width + -width % _ALIGNED)
            return torch.mm(x, self.weight.t(), out=lines[:, :width])
        return F.linear(x, self.weight, self.bias)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of a weight that is gate | up: [T, in] → [T, out / 2]."""
        if x.shape[0] <= FEW_ROWS:
            return self.few_rows(x, gated=True)
        if self.rows is not None and self.gates(x):
            return self.rows.gate(x, self.weight)
        return silu_and_mul(self(x))

    def gates(self, x: torch.Tensor) -> bool:
        """Whether `rows` has the gate in its product."""
        return self.rows is not None and self.bias is None and self.rows.gates(x, self.weight)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y, in place; rounded once, after the sum."""
        if x.shape[0] <= FEW_ROWS:
            return self.few_rows(x, residual=residual)
        if self.bias is not None:
            residual.add_(self.bias)
        if self.rows is not None and self.rows.adds(residual, x, self.weight):
            self.rows.add(residual, x, self.weight)
            return residual
        return torch.addmm(residual, x, self.weight.t(), out=residual)

    def few_rows(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        norm: NormWeight | None = None,
        gated: bool = False,
        folded_eps: float | None = None,
    ) -> torch.Tensor:
        """The product of at most `FEW_ROWS` rows, with what stands around it.

        Args:
            x: [T, in], contiguous.
            residual: [T, out] to add to, in place.
            norm: normalises x first.
            gated: the weight is gate and up; the result is silu(gate) * up, [T, out / 2].
            folded_eps: x is normalised by a norm whose weight is in this one; instead of `norm`.
        """
        rows, (size_out, size_in) = x.shape[0], self.weight.shape
        size_out //= 1 + gated
        out = residual
        if out is None:
            out = torch.empty(rows, size_out, dtype=x.dtype, device=x.device)
        eps = folded_eps if norm is None else norm.eps
        block_in = min(_BLOCK_IN, power_of_two(size_in))
        block_out = _BLOCK_OUT // (1 + gated)
        _few_rows_kernel[(triton.cdiv(size_out, block_out),)](
            x,
            self.weight,
            self.bias,
            residual,
            None if norm is None else norm.weight,
            out,
            eps or 0.0,
            rows,
            size_out,
            HAS_BIAS=self.bias is not None,
            HAS_RESIDUAL=residual is not None,
            HAS_NORM=norm is not None,
            IS_FOLDED=folded_eps is not None,
            GATED=gated,
            ROWS=power_of_two(rows),
            SIZE_IN=size_in,
            BLOCK_OUT=block_out,
            BLOCK_IN=block_in,
            AHEAD=min(_AHEAD, triton.cdiv(size_in, block_in)),
            num_warps=_WARPS,
            **LAUNCH,
        )
        return out

    def holds(self, weight: torch.Tensor) -> bool:
        """Whether this is its weight."""
        return self.weight is weight

    @property
    def nbytes(self) -> int:
        """Memory of weight and bias."""
        return self.weight.nbytes + (self.bias.nbytes if self.bias is not None else 0)
