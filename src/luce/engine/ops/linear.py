"""Matrix products with weights that an implementation may lay out as it likes."""

from __future__ import annotations

from typing import Protocol

import torch


class Linear(Protocol):
    """y = x W^T + bias, with W [out, in] packed by a `LinearPacker`."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] → [T, out]."""

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y: [T, out] and [T, in] → [T, out]; `residual` may be overwritten."""

    def holds(self, weight: torch.Tensor) -> bool:
        """Whether it computes with this very tensor instead of a packed copy."""

    @property
    def nbytes(self) -> int:
        """Memory the weight, packed or not, and the bias take."""


class LinearPacker(Protocol):
    """Turns a plain weight into a `Linear`, by copy or by keeping the tensor itself."""

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Pack `weight` [out, in] and `bias` [out]."""
