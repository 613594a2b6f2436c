"""What products with matrices that stay as they are stored have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class StoredMatrix(Protocol):
    """A matrix in whatever form."""

    @property
    def nbytes(self) -> int:
        """Memory of it."""


class StoredLinear:
    """A `Linear` but for the product.

    Args:
        parts: its matrices.
        bias: of all of them.
    """

    def __init__(self, parts: Sequence[StoredMatrix], bias: torch.Tensor | None) -> None:
        bias_bytes = 0 if bias is None else bias.nbytes
        self._nbytes = sum(part.nbytes for part in parts) + bias_bytes

    def holds(self, weight: torch.Tensor) -> bool:
        """Never: what is stored is no plain matrix."""
        del weight
        return False

    @property
    def nbytes(self) -> int:
        """Memory of matrices and bias."""
        return self._nbytes
