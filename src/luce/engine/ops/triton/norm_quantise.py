"""RMS normalisation that also leaves its result as `quant_vector` takes it, and that alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from luce.engine.ops.projection import NormWeight
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs
from luce.engine.ops.triton.quant_activations import quantise_groups, store_quantised
from luce.loaders.quant_formats import GROUP

MOST_GROUPS = 512
"""Of a row: one program has them all."""
WORDS = 19
"""Of a group of 32: its numbers two by two, their scale and the sums of both halves."""


@dataclass(frozen=True, slots=True)
class PartWords:
    """Rows to be divided by a root mean square, which is not done yet.

    Of a group the words come first, then scales of its parts, each quantised by itself, then their
    sums.

    Attributes:
        words: int32 [T, 16 + 2 P, K / 32]: of P parts; weights are in them.
        squares: f32 [T, heads, N]: sums of the squares of N runs of a head, or of a whole row.
        eps: added to the mean.
    """

    words: torch.Tensor
    squares: torch.Tensor
    eps: float

    @classmethod
    def empty(
        cls, sizes: tuple[int, int, int], length: int, eps: float, device: torch.device
    ) -> PartWords:
        """Of so many tokens, columns and heads, in parts of `length` columns."""
        tokens, columns, heads = sizes
        each = 16 + 2 * (GROUP // length)
        words = torch.empty(tokens, each, columns // GROUP, dtype=torch.int32, device=device)
        parts = columns // length // heads
        squares = torch.empty(tokens, heads, parts, dtype=torch.float32, device=device)
        return cls(words, squares, eps)


@triton.jit
def quantise_in_orders(
    target, row, groups, plane, num_groups: tl.constexpr, BG: tl.constexpr,
    PLAIN: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Write the words of a row, [BG, 32], in the plain order, and a plane on in that of tables."""
    if PLAIN:
        store_quantised(target, groups, quantise_groups(row, BG, 0), num_groups)
        target += plane
    if TABLE:
        store_quantised(target, groups, quantise_groups(row, BG, 1), num_groups)


@triton.jit
def _norm_kernel(
    x, weight, out, words, x_stride, eps, plane, num_groups: tl.constexpr, BG: tl.constexpr,
    PLAIN: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Program: one row; words in the plain order, in that of tables, or in both."""
    row = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, BG)
    at = groups[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = (groups < num_groups)[:, None]
    # On its way before the kernel ahead is done.
    factors = tl.load(weight + at, mask=inside, other=0.0)
    wait_for_inputs()
    wide = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(tl.sum(wide * wide, 1), 0) / (num_groups * 32)
    # Rounded before the weight, as `ops.pointwise.RmsNorm` has it.
    normal = (wide * tl.rsqrt(mean + eps)).to(out.dtype.element_ty) * factors
    tl.store(out + row * (num_groups * 32) + at, normal, mask=inside)
    result = normal.to(tl.float32)
    target = words + row * (19 * num_groups)
    quantise_in_orders(target, result, groups, plane, num_groups, BG, PLAIN, TABLE)


def norm_and_quantise(
    x: torch.Tensor, norm: NormWeight, orders: tuple[bool, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """norm(x), and its words in each order, false for the plain one before true for tables'.

    Args:
        x: [T, K], contiguous rows of whole groups.
        norm: of K.
        orders: which.

    Returns:
        [T, K] as x, and int32 [orders, T, 19, K / 32].
    """
    tokens, size = x.shape
    groups = size // GROUP
    out = torch.empty(tokens, size, dtype=x.dtype, device=x.device)
    words = torch.empty(len(orders), tokens, WORDS, groups, dtype=torch.int32, device=x.device)
    block = power_of_two(groups)
    _norm_kernel[(tokens,)](
        x, norm.weight, out, words, x.stride(0), norm.eps, tokens * WORDS * groups,
        num_groups=groups, BG=block, PLAIN=False in orders, TABLE=True in orders,
        num_warps=min(16, max(1, block // 8)), **LAUNCH,
    )  # fmt: skip
    return out, words
