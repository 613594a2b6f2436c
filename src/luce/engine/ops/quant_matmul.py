"""Matrix products with weights that stay quantised in memory.

    y[t, n] = sum_k x[t, k] W[n, k] + bias[n] (+ residual[t, n])

with W in the planes of `luce.loaders.quant_formats`, x and y in the activations' type and sums in
float32. What is multiplied differs by the number of rows of x, because a different unit of the
processor is the bottleneck:

| rows | class | weights | activations | error against float64, of the norm |
| --- | --- | --- | --- | --- |
| few | vector | exact | 16 bits of a group's largest | 3e-5 before y is rounded |
| some | tile | bfloat16 | as they are | 1e-3 |
| many | vendor | bfloat16 | as they are | 1e-3 |

Within a class a row's result depends on no other row, and no sum depends on timing.
Bytes read: those of the planes, once; `vendor` writes and reads them as bfloat16 besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import ExpertMlp, FuseFewTokens
from luce.engine.ops.pointwise import SiluAndMul
from luce.engine.quant_planes import QuantPlanes


class QuantPacker(Protocol):
    """Makes a `Linear` of quantised matrices, which lie one below the other in its output."""

    def __call__(self, parts: list[QuantPlanes], bias: torch.Tensor | None) -> Linear:
        """Use `parts`, each [N_i, K] of any format, and `bias` [sum of N_i]."""


class QuantLookup(Protocol):
    """Rows of a quantised table, decoded."""

    def __call__(
        self, planes: QuantPlanes, row_ids: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """i32 [T] rows of [V, K] → [T, K] in `dtype`, rounded once from float32."""


class QuantExpertPacker(Protocol):
    """Makes an `ExpertMlp` of quantised experts."""

    def __call__(
        self, gate_up: QuantPlanes, down: QuantPlanes, num_experts: int, silu_and_mul: SiluAndMul
    ) -> ExpertMlp:
        """Use gate | up, E * 2F rows of `hidden`, and down, E * hidden rows of F."""


@dataclass(frozen=True, slots=True)
class QuantOps:
    """What models with quantised weights run on; without a packer experts are decoded at load.

    `fuse_few`, where it is there, computes whole mixtures of few tokens.
    """

    pack_linear: QuantPacker
    lookup: QuantLookup
    pack_experts: QuantExpertPacker | None = None
    fuse_few: FuseFewTokens | None = None


def check_parts(parts: list[QuantPlanes], bias: torch.Tensor | None) -> tuple[int, int]:
    """Rows and columns of all parts together; they must have one width and one device."""
    assert parts, "no matrix"
    columns, device = parts[0].columns, parts[0].codes.device
    assert all(part.columns == columns and part.codes.device == device for part in parts)
    rows = sum(part.rows for part in parts)
    assert bias is None or bias.shape == (rows,), "bias does not fit"
    return rows, columns
