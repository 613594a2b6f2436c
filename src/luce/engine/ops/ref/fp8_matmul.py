"""FP8 matrix products the plain way: decode, then multiply."""

from __future__ import annotations

import torch

from luce.engine.fp8_weights import Fp8Matrix, StoredPart
from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import ExpertMlp
from luce.engine.ops.pointwise import SiluAndMul
from luce.engine.ops.ref.decoded_linear import DecodedLinear
from luce.engine.ops.ref.moe import LoopedExperts
from luce.loaders.fp8_names import BLOCK


def decode_rows(matrix: Fp8Matrix, rows: torch.Tensor) -> torch.Tensor:
    """These rows, i64 [n], in float32 [n, K]; a number times its scale, rounded once."""
    numbers = matrix.codes[rows].view(torch.float8_e4m3fn).float()
    if not matrix.is_block:
        return numbers * matrix.scales[rows]
    lines = rows // matrix.band * matrix.band_blocks + rows % matrix.band // BLOCK
    return numbers * matrix.scales[lines].repeat_interleave(BLOCK, dim=1)[:, : matrix.columns]


def decode(part: StoredPart) -> torch.Tensor:
    """A matrix in float32."""
    if isinstance(part, torch.Tensor):
        return part.float()
    return decode_rows(part, torch.arange(part.rows, device=part.codes.device))


def lookup(table: Fp8Matrix, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`ops.fp8_matmul.Fp8Lookup`."""
    return decode_rows(table, row_ids.long()).to(dtype)


def linear(parts: list[StoredPart], bias: torch.Tensor | None) -> Linear:
    """`ops.fp8_matmul.Fp8Packer`: decodes the matrices for every product."""
    return DecodedLinear(parts, bias, decode)


def pack_experts(
    gate_up: Fp8Matrix, down: Fp8Matrix, num_experts: int, silu_and_mul: SiluAndMul
) -> ExpertMlp:
    """`ops.fp8_matmul.Fp8ExpertPacker`: a product for each expert."""

    def each(matrix: Fp8Matrix) -> tuple[Linear, ...]:
        rows = matrix.rows // num_experts
        lines = len(matrix.scales) // num_experts
        return tuple(
            linear(
                [
                    Fp8Matrix(
                        matrix.codes[index * rows : (index + 1) * rows],
                        matrix.scales[index * lines : (index + 1) * lines],
                        matrix.is_block,
                        min(matrix.band, rows),
                    )
                ],
                None,
            )
            for index in range(num_experts)
        )

    return LoopedExperts(each(gate_up), each(down), silu_and_mul)
