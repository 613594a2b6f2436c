"""Token embedding: a table of rows, plain, quantised or FP8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from luce.engine.fp8_weights import Fp8Matrix
from luce.engine.ops.fp8_matmul import Fp8Lookup
from luce.engine.ops.quant_matmul import QuantLookup
from luce.engine.quant_planes import QuantPlanes


class TokenEmbedding(Protocol):
    """From tokens to hidden states."""

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """i32 [T] → [T, hidden]."""

    @property
    def nbytes(self) -> int:
        """Memory of the table."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """Looks tokens up.

    Attributes:
        table: [V, hidden]; may be of a narrower type than the model computes in, if it is exact.
        dtype: what the model computes in.
    """

    table: torch.Tensor
    dtype: torch.dtype

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """i32 [T] → [T, hidden]."""
        return F.embedding(token_ids, self.table).to(self.dtype)

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self.table.nbytes


@dataclass(frozen=True, slots=True)
class QuantEmbedding:
    """Looks tokens up in a quantised table.

    Attributes:
        planes: [V, hidden].
        dtype: what the model computes in.
        lookup: the implementation.
    """

    planes: QuantPlanes
    dtype: torch.dtype
    lookup: QuantLookup

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """i32 [T] → [T, hidden]."""
        return self.lookup(self.planes, token_ids, self.dtype)

    @property
    def nbytes(self) -> int:
        """Memory of the planes."""
        return self.planes.nbytes


@dataclass(frozen=True, slots=True)
class Fp8Embedding:
    """Looks tokens up in a table of FP8 numbers.

    Attributes:
        matrix: [V, hidden].
        dtype: what the model computes in.
        lookup: the implementation.
    """

    matrix: Fp8Matrix
    dtype: torch.dtype
    lookup: Fp8Lookup

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """i32 [T] → [T, hidden]."""
        return self.lookup(self.matrix, token_ids, self.dtype)

    @property
    def nbytes(self) -> int:
        """Memory of numbers and scales."""
        return self.matrix.nbytes


def lookup_table(embedding: TokenEmbedding) -> torch.Tensor | QuantPlanes | None:
    """What kernels that look tokens up themselves read; None: they cannot."""
    if isinstance(embedding, Embedding):
        return embedding.table
    return embedding.planes if isinstance(embedding, QuantEmbedding) else None
