"""Products of rows that were not normalised: the norm's weight is in their columns.

Few rows are normalised in the product's kernel, more in the one behind it: the vendor's reads them
as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import FoldedProducts, NormWeight
from luce.engine.ops.qkv import PlaceQkv, Placing, UnnormedRows
from luce.engine.ops.triton.gated_mlp import normed_silu_and_mul, silu_and_mul
from luce.engine.ops.triton.linear import FEW_ROWS, DeviceLinear
from luce.engine.ops.triton.place_qkv import FusedPlaceQkv
from luce.engine.ops.triton.rms_norm import rms_norm, row_factors

_MANY_ROWS, _LARGE_BYTES = 512, 1 << 25
"""From here on factors of a gate are computed by a kernel of their own, before the product: behind
it many programs would ask memory for rows that weights have pushed out of the processor's cache."""


def _foldable(linear: Linear) -> torch.Tensor | None:
    """Its weight, if the result is the product alone."""
    if isinstance(linear, DeviceLinear) and linear.bias is None:
        return linear.weight
    return None


def _gated(x: torch.Tensor, norm: NormWeight, linear: Linear) -> torch.Tensor:
    """`ops.projection.NormedProduct` of gate | up; the norm's own weight is 1."""
    assert isinstance(linear, DeviceLinear)
    if x.shape[0] <= FEW_ROWS:
        return linear.few_rows(x, gated=True, folded_eps=norm.eps)
    if linear.gates(x):
        # While rows are normalised, the product's weights come.
        return linear.gated(rms_norm(x, norm.weight, norm.eps))
    if x.shape[0] >= _MANY_ROWS and linear.nbytes >= _LARGE_BYTES:
        factors = row_factors(x, norm.eps)
        return silu_and_mul(linear(x), factors)
    return normed_silu_and_mul(linear(x), x, norm.eps)


@dataclass(frozen=True, slots=True)
class _FoldedQkv:
    """`ops.projection.ProjectQkv`; the norm's own weight is 1."""

    place: FusedPlaceQkv

    def __call__(
        self, hidden: torch.Tensor, norm: NormWeight, linear: Linear, placing: Placing
    ) -> torch.Tensor:
        """[T, hidden] → [T, (H + 2K) * D]."""
        assert isinstance(linear, DeviceLinear)
        if hidden.shape[0] <= FEW_ROWS:
            packed = linear.few_rows(hidden, folded_eps=norm.eps)
            self.place(packed, placing.heads, placing.norms, placing.places, placing.cache)
        else:
            packed = linear(hidden)
            self.place.place_unnormed(packed, placing, UnnormedRows(hidden, norm.eps))
        return packed


def folded_products(place_qkv: PlaceQkv) -> FoldedProducts | None:
    """None if keys and values are placed by something else."""
    if not isinstance(place_qkv, FusedPlaceQkv):
        return None
    return FoldedProducts(_foldable, _gated, _FoldedQkv(place_qkv))
