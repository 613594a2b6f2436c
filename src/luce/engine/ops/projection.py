"""A norm and the product that reads it, and what stands behind the product, as one operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.qkv import Placing


@dataclass(frozen=True, slots=True)
class NormWeight:
    """RMS normalisation with its weight: [size] and what is added to the mean square."""

    weight: torch.Tensor
    eps: float


class NormedProduct(Protocol):
    """linear(norm(x)), or silu(gate) * up of it where the weight is gate | up."""

    def __call__(self, x: torch.Tensor, norm: NormWeight, linear: Linear) -> torch.Tensor:
        """[T, in] → [T, out], or [T, out / 2] gated."""


@runtime_checkable
class NormsItself(Protocol):
    """A `Linear` that may normalise what it multiplies."""

    def normed(self, x: torch.Tensor, norm: NormWeight) -> torch.Tensor | None:
        """linear(norm(x)), [T, in] → [T, out]; None: not of so many rows."""


class ProjectQkv(Protocol):
    """Norm and product, and what `qkv.PlaceQkv` does."""

    def __call__(
        self, hidden: torch.Tensor, norm: NormWeight, linear: Linear, placing: Placing
    ) -> torch.Tensor:
        """Queries as attention wants them; keys and values enter the cache.

        Args:
            hidden: [T, hidden], contiguous.
            norm: of it.
            linear: q | k | v, [(H + 2K) * D, hidden].
            placing: where to.

        Returns:
            [T, (H + 2K) * D], of which keys and values may be anything.
        """


@dataclass(frozen=True, slots=True)
class FoldedProducts:
    """The same where the norm's weight is in the product's columns.

    Attributes:
        foldable: what must be multiplied for that, [out, in]; None: that cannot be.
        gated: for gate | up.
        qkv: for q | k | v.
    """

    foldable: Callable[[Linear], torch.Tensor | None]
    gated: NormedProduct
    qkv: ProjectQkv
