"""Matrix products with weights that stay FP8 in memory.

    y[t, n] = sum_k x[t, k] W[n, k] + bias[n] (+ residual[t, n]),  W = number * scale

with x and y in the activations' type and sums in float32. An e4m3 number is exact in bfloat16 and
float16, so few and some rows of x multiply numbers as they are, and scales come after; many rows
multiply W rounded to the activations' type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from luce.engine.fp8_weights import Fp8Matrix, StoredPart
from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import ExpertMlp
from luce.engine.ops.pointwise import SiluAndMul


class Fp8Packer(Protocol):
    """Makes a `Linear` of matrices, some of them FP8, which lie one below the other."""

    def __call__(self, parts: list[StoredPart], bias: torch.Tensor | None) -> Linear:
        """Use `parts`, each [N_i, K], and `bias` [sum of N_i]."""


class Fp8Lookup(Protocol):
    """Rows of an FP8 table, decoded."""

    def __call__(self, table: Fp8Matrix, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """i32 [T] rows of [V, K] → [T, K] in `dtype`, rounded once from float32."""


class Fp8ExpertPacker(Protocol):
    """Makes an `ExpertMlp` of FP8 experts."""

    def __call__(
        self, gate_up: Fp8Matrix, down: Fp8Matrix, num_experts: int, silu_and_mul: SiluAndMul
    ) -> ExpertMlp:
        """Use gate | up, E * 2F rows of `hidden`, and down, E * hidden rows of F."""


@dataclass(frozen=True, slots=True)
class Fp8Ops:
    """What models with FP8 weights run on."""

    pack_linear: Fp8Packer
    lookup: Fp8Lookup
    pack_experts: Fp8ExpertPacker
