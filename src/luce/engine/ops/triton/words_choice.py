"""Whether products of words are made by the kernel of CUDA C++."""

from __future__ import annotations

from collections.abc import Callable

import torch

from luce.engine.device import kernel_refusal
from luce.engine.ops.cuda import words_product
from luce.engine.ops.triton.norm_quantise import PartWords
from luce.engine.ops.triton.probe import TrialError, launch_refusal
from luce.engine.quant_planes import QuantPlanes

_MOST_APART = 1e-2
"""Of the norm: sums in another order, rounded to bfloat16."""


def multiplied(
    planes: QuantPlanes,
    x: torch.Tensor | PartWords,
    y: torch.Tensor,
    start: int,
    usual: Callable[[torch.Tensor], None],
    *,
    adds: bool,
) -> bool:
    """Leave x W^T in columns of y, or add it to them; false, and y as it was, if it does not.

    Args:
        planes: W.
        x: words of rows, or `PartWords`.
        y: [T, N or more].
        start: of the columns.
        usual: does the same by another kernel.
        adds: to y.
    """
    words = x.words if isinstance(x, PartWords) else x
    tokens, each, _ = words.shape
    if tokens > words_product.MOST_TOKENS or y.dtype != torch.bfloat16:
        return False
    if kernel_refusal(is_hopper=True) or words_product.refusal(planes):
        return False
    squares = (x.squares, x.eps) if isinstance(x, PartWords) else None
    heads = 1 if squares is None else squares[0].shape[1]

    def multiply(out: torch.Tensor) -> None:
        words_product.multiply(planes, words, squares, out[:, start:], adds=adds)

    facts = "words_product", planes.rows, planes.columns, tokens, each, heads, adds
    if launch_refusal(facts, lambda: _try(y, multiply, usual)) is not None:
        return False
    multiply(y)
    return True


def _try(
    y: torch.Tensor,
    multiply: Callable[[torch.Tensor], None],
    usual: Callable[[torch.Tensor], None],
) -> None:
    """One against the other.

    Raises:
        TrialError: they differ.
    """
    found, expected = torch.zeros_like(y), torch.zeros_like(y)
    multiply(found)
    usual(expected)
    apart = float((found.float() - expected.float()).norm() / expected.float().norm())
    if not apart < _MOST_APART:
        raise TrialError(f"a product of words is {apart:.1e} of its norm off")
