"""Experts that stay FP8: the products of `moe_stacked` by the kernels of `fp8_vector` and _tile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from luce.engine.fp8_weights import Fp8Matrix
from luce.engine.ops.moe import Routing
from luce.engine.ops.pointwise import SiluAndMul
from luce.engine.ops.triton.fp8_linear import MatrixFacts, VectorTiling, vector_cut
from luce.engine.ops.triton.fp8_tile import fp8_expert_tiles
from luce.engine.ops.triton.fp8_vector import fp8_vector
from luce.engine.ops.triton.moe import most_tiles
from luce.engine.ops.triton.moe_stacked import StackedExperts
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two


@dataclass(frozen=True, slots=True)
class Fp8MoeTiling:
    """How products of many pairs are cut.

    Attributes:
        pairs: of a tile, all of one expert.
        rows: of a matrix.
        warps: of a program.
        stages: of its software pipeline.
    """

    pairs: int
    rows: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Fp8MoeTilings:
    """How a mixture's products are cut: nothing here has been measured yet.

    Attributes:
        pair: of one pair.
        small: of few pairs an expert.
        large: of more.
    """

    pair: VectorTiling
    small: Fp8MoeTiling
    large: Fp8MoeTiling


DEFAULT_TILINGS = Fp8MoeTilings(
    VectorTiling(4, 8, 0, 4), Fp8MoeTiling(16, 64, 4, 4), Fp8MoeTiling(64, 64, 4, 4)
)
# As `fp8_linear.HIP_TILINGS`.
HIP_TILINGS = Fp8MoeTilings(
    VectorTiling(4, 8, 0, 4), Fp8MoeTiling(32, 64, 8, 2), Fp8MoeTiling(32, 64, 8, 2)
)


class _Stack:
    """A matrix for each expert, in one."""

    def __init__(self, matrix: Fp8Matrix, num_experts: int, tilings: Fp8MoeTilings) -> None:
        assert matrix.rows % num_experts == 0
        self._matrix = matrix
        self._facts = MatrixFacts.of(matrix)
        self._tilings = tilings
        self.rows = matrix.rows // num_experts

    @property
    def nbytes(self) -> int:
        """Memory of numbers and scales."""
        return self._matrix.nbytes

    def by_pair(self, x: torch.Tensor, experts: torch.Tensor, chosen: int) -> torch.Tensor:
        """Rows of x, each for `chosen` experts, times theirs: f32 [T * k, rows]."""
        pairs, tiling = experts.numel(), self._tilings.pair
        out = torch.empty(pairs, self.rows, dtype=torch.float32, device=x.device)
        blocks, ahead = vector_cut(self._facts, tiling)
        fp8_vector[(triton.cdiv(self.rows, tiling.rows), pairs)](
            x, *self._facts.pointers, out, out, experts, out,
            1, self.rows, x.stride(0), out.stride(0),
            CHOSEN=chosen, TOKENS=1, BN=tiling.rows, G=blocks, AHEAD=ahead,
            HAS_BIAS=False, HAS_RESIDUAL=False, **self._facts.constants,
            num_warps=tiling.warps, **LAUNCH,
        )  # fmt: skip
        return out

    def by_expert(
        self,
        x: torch.Tensor,
        sorted_pairs: tuple[torch.Tensor, torch.Tensor],
        routing: Routing,
        *,
        is_last: bool,
    ) -> torch.Tensor:
        """Tiles of pairs times their expert's matrix; see the kernel: [T * k, rows]."""
        order, starts = sorted_pairs
        pairs, num_experts = len(order), len(starts) - 1
        tilings = self._tilings
        is_small = pairs <= tilings.small.pairs * num_experts
        tiling = tilings.small if is_small else tilings.large
        out = x.new_empty(pairs, self.rows)
        grid = (triton.cdiv(self.rows, tiling.rows), most_tiles(pairs, num_experts, tiling.pairs))
        fp8_expert_tiles[grid](
            x, *self._facts.pointers, order, starts, routing.weights, out, self.rows,
            E=num_experts, CHOSEN=routing.experts.shape[1], IS_LAST=is_last,
            BLOCK_E=power_of_two(num_experts), BM=tiling.pairs, BN=tiling.rows,
            **self._facts.constants, num_warps=tiling.warps, num_stages=tiling.stages, **LAUNCH,
        )  # fmt: skip
        return out


class Fp8Experts(StackedExperts):
    """`ops.moe.ExpertMlp` over FP8 matrices.

    Args:
        gate_up: of all experts, E * 2F rows of `hidden` columns: an expert's gate, then its up.
        down: of all experts, E * hidden rows of F columns.
        num_experts: E.
        silu_and_mul: the gate.
        tilings: measured about the processor.
    """

    def __init__(
        self,
        gate_up: Fp8Matrix,
        down: Fp8Matrix,
        num_experts: int,
        silu_and_mul: SiluAndMul,
        tilings: Fp8MoeTilings = DEFAULT_TILINGS,
    ) -> None:
        inner, outer = (_Stack(matrix, num_experts, tilings) for matrix in (gate_up, down))
        super().__init__(inner, outer, num_experts, silu_and_mul)
