"""Norms whose weight goes into the columns of the product that reads them.

W (f * x * w) = f * (W diag(w)) x, where f is a row's 1 / sqrt(mean square): so the product reads x
as it is, the kernel behind it multiplies by f, and the norm needs no kernel of its own. Only in
bfloat16: x and its products may leave float16's range, and float32 stays as close to its reference
as it is. Weights are rounded once more, but x is no longer rounded twice: results are closer to
float64 (`docs/lab/gpu.md`).
"""

from __future__ import annotations

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import FoldedProducts, NormedProduct, NormWeight, ProjectQkv
from luce.engine.ops.ref.qkv import PlacedProduct
from luce.engine.ops.select import OpSet

FOLDED = torch.bfloat16
"""The type of models whose norms are folded."""


class NormFolding:
    """Chooses how each product gets its norm, and multiplies weights when they are there.

    Args:
        ops: implementations.
        dtype: what the model computes in.
    """

    def __init__(self, ops: OpSet, dtype: torch.dtype) -> None:
        self._ops = ops
        self._folded = _folded_products(ops) if dtype == FOLDED else None
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []

    def gated_product(self, norm: NormWeight, linear: Linear) -> NormedProduct:
        """For the norm and gate | up, which nothing else may read."""
        folded = self._fold(norm, linear)
        return self._ops.gated_product if folded is None else folded.gated

    def project_qkv(self, norm: NormWeight, linear: Linear) -> ProjectQkv:
        """For the norm and q | k | v, which nothing else may read."""
        folded = self._fold(norm, linear)
        if folded is None:
            return PlacedProduct(self._ops.product, self._ops.place_qkv)
        return folded.qkv

    def _fold(self, norm: NormWeight, linear: Linear) -> FoldedProducts | None:
        weight = None if self._folded is None else self._folded.foldable(linear)
        if weight is None:
            return None
        self._waiting.append((weight, norm.weight))
        return self._folded

    def finish(self) -> None:
        """Multiply, in float32 and rounded once, and leave norms of 1; all are filled."""
        for weight, norm in self._waiting:
            weight.mul_(norm)
            norm.fill_(1.0)
        self._waiting.clear()


def _folded_products(ops: OpSet) -> FoldedProducts | None:
    """For products and placing by our kernels alone."""
    if not ops.is_on_device:
        return None
    # Triton is needed only where it was chosen.
    from luce.engine.ops.triton.folded import folded_products

    return folded_products(ops.place_qkv)
