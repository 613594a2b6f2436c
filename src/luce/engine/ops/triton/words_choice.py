"""Which kernel multiplies words of a few rows: the one for Q4_K on Hopper, or the one for all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from luce.engine.device import kernel_limits, kernel_refusal
from luce.engine.ops.cuda import words_product
from luce.engine.ops.triton.probe import TrialError, launch_refusal
from luce.engine.ops.triton.quant_part import QuantPart

_MOST_APART = 5e-3
"""Of the norm: sums in another order, rounded to bfloat16."""


def add_words(
    part: QuantPart,
    x: words_product.Words,
    residual: torch.Tensor,
    otherwise: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None],
    *,
    has_bias: bool,
) -> None:
    """residual += x W^T (+ bias) in the columns of the part.

    Args:
        part: a matrix.
        x: words in its order.
        residual: [T, all parts' rows].
        otherwise: does the same with another kernel, of x, which it does not read, the result and
            what it is added to.
        has_bias: so that `otherwise` alone will do.
    """
    if not has_bias and _refusal(part, x, residual) is None:
        facts = "words_product", part.planes.columns, words_product.head_groups(x), residual.device
        if launch_refusal(facts, partial(_try, part, x, residual, otherwise)) is None:
            words_product.add(part.planes, x, residual[:, part.start :])
            return
    otherwise(residual, residual, residual)


def _refusal(part: QuantPart, x: words_product.Words, residual: torch.Tensor) -> str | None:
    reason = kernel_refusal() or words_product.refusal(part.planes, residual, x)
    if reason is not None:
        return reason
    # 27B's 5,120 rows were slower: 33.4 us a layer of linear attention instead of 32.0.
    if words_product.blocks(part.planes) > kernel_limits(residual.device).processors:
        return "made for one block of threads on a multiprocessor"
    return None


def _try(
    part: QuantPart,
    x: words_product.Words,
    residual: torch.Tensor,
    otherwise: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None],
) -> None:
    """Both kernels on zeros.

    Raises:
        TrialError: they differ.
    """
    found, expected = torch.zeros_like(residual), torch.zeros_like(residual)
    words_product.add(part.planes, x, found[:, part.start :])
    otherwise(expected, expected, expected)
    # Words of nothing give nothing, by both.
    size = expected.float().norm().clamp_min(torch.finfo(torch.float32).tiny)
    apart = float((found.float() - expected.float()).norm() / size)
    if not apart < _MOST_APART:
        raise TrialError(f"a product of words is {apart:.1e} off")
