"""A product with matrices that are stored in some form, the plain way: decode, then multiply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from luce.engine.ops.stored_linear import StoredLinear, StoredMatrix

Matrix = TypeVar("Matrix", bound=StoredMatrix)


class DecodedLinear(StoredLinear, Generic[Matrix]):
    """Decodes the matrices for every product.

    Args:
        parts: the matrices [n, K], one below the other.
        bias: of all of them.
        decode: makes float32 [n, K] of a matrix.
    """

    def __init__(
        self,
        parts: list[Matrix],
        bias: torch.Tensor | None,
        decode: Callable[[Matrix], torch.Tensor],
    ) -> None:
        super().__init__(parts, bias)
        self._matrices = parts
        self._bias = bias
        self._decode = decode

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, K] → [T, N]."""
        return self._product(x).to(x.dtype)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y."""
        return (residual.float() + self._product(x)).to(residual.dtype)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        y = torch.cat([wide @ self._decode(part).T for part in self._matrices], dim=1)
        return y if self._bias is None else y + self._bias.float()
