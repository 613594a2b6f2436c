"""`ops.projection.NormedProduct`: one kernel for few rows, the single operations for more."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormedProduct, NormWeight
from luce.engine.ops.triton.gated_mlp import silu_and_mul
from luce.engine.ops.triton.linear import FEW_ROWS, DeviceLinear
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.ops.triton.rms_norm import rms_norm


@dataclass(frozen=True, slots=True)
class FusedProduct:
    """Norm, product and, if `gated`, gate.

    Attributes:
        stepwise: for more rows, and for weights that are stored otherwise.
        gated: the weight is gate | up.
    """

    stepwise: NormedProduct
    gated: bool

    def __call__(self, x: torch.Tensor, norm: NormWeight, linear: Linear) -> torch.Tensor:
        """[T, in] → [T, out], or [T, out / 2] gated."""
        if isinstance(linear, DeviceLinear) and x.shape[0] <= FEW_ROWS:
            return linear.few_rows(x, norm=norm, gated=self.gated)
        if isinstance(linear, DeviceLinear) and self.gated:
            return linear.gated(rms_norm(x, norm.weight, norm.eps))
        if isinstance(linear, TritonQuantLinear):
            product = linear.normed(x, norm)
            if product is not None:
                return silu_and_mul(product) if self.gated else product
        return self.stepwise(x, norm, linear)
