"""Chooses among the FP8 kernels by the number of rows and runs them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from luce.engine.fp8_weights import Fp8Matrix, StoredPart
from luce.engine.ops.stored_linear import StoredLinear
from luce.engine.ops.triton.fp8_tile import dequantise_fp8, fp8_tile_product
from luce.engine.ops.triton.fp8_vector import BLOCK_SCALES, NO_SCALES, ROW_SCALES, fp8_vector
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two
from luce.engine.ops.triton.quant_tile import add_partials
from luce.loaders.fp8_names import BLOCK

_ADD_BLOCK = 1024
_ROW_RUN = 64
_LEAST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class VectorTiling:
    """How `fp8_vector` cuts a matrix.

    Attributes:
        rows: of the matrix a program makes.
        blocks: of 128 columns it reads at a time.
        ahead: of these reads that are under way before the kernel's inputs are there.
        warps: of a program.
    """

    rows: int
    blocks: int
    ahead: int
    warps: int


@dataclass(frozen=True, slots=True)
class TileTiling:
    """How `fp8_tile_product` cuts a matrix.

    Attributes:
        rows: of the matrix a program makes.
        warps: of a program.
        stages: of its software pipeline.
        programs: fewer than these for the whole matrix, and the columns are shared out.
    """

    rows: int
    warps: int
    stages: int
    programs: int


@dataclass(frozen=True, slots=True)
class Fp8Tilings:
    """How products are cut: nothing here has been measured yet.

    Attributes:
        vector: for numbers of rows of x up to each key, a power of two. The order of a sum depends
            on blocks and warps: they are the same in all, and so is a row's result.
        tile: likewise, above those.
        scratch_elements: of weights decoded at a time for a vendor product, above those.
    """

    vector: dict[int, VectorTiling]
    tile: dict[int, TileTiling]
    scratch_elements: int = 1 << 26


DEFAULT_TILINGS = Fp8Tilings(
    vector={
        1: VectorTiling(4, 8, 2, 4),
        2: VectorTiling(4, 8, 2, 4),
        4: VectorTiling(4, 8, 2, 4),
    },
    tile={
        32: TileTiling(64, 4, 4, 264),
        64: TileTiling(64, 4, 4, 264),
        128: TileTiling(128, 8, 3, 132),
    },
)
# By the compiler's word for gfx942 and gfx1100, never run: under 64 KiB shared, little spilled.
HIP_TILINGS = Fp8Tilings(
    vector={1: VectorTiling(4, 8, 2, 4)},
    tile={32: TileTiling(64, 8, 2, 264)},
)


@dataclass(frozen=True, slots=True)
class MatrixFacts:
    """A matrix as kernels take it.

    Attributes:
        pointers: the weight and its scales; not read where there are none.
        constants: compile-time facts.
        rows: N.
    """

    pointers: tuple[torch.Tensor, torch.Tensor]
    constants: dict[str, int]
    rows: int

    @classmethod
    def of(cls, part: StoredPart) -> MatrixFacts:
        """Of an FP8 or a plain matrix."""
        if isinstance(part, Fp8Matrix):
            kind = BLOCK_SCALES if part.is_block else ROW_SCALES
            constants = {"SCALES": kind.value, "BAND": part.band, "SIZE_IN": part.columns}
            return cls((part.codes, part.scales), constants, part.rows)
        rows, columns = part.shape
        constants = {"SCALES": NO_SCALES.value, "BAND": rows, "SIZE_IN": columns}
        return cls((part, part), constants, rows)


@dataclass(frozen=True, slots=True)
class _Target:
    """Where one matrix's part of the output goes: columns of y, and what is added there."""

    out: torch.Tensor
    bias: torch.Tensor | None
    residual: torch.Tensor | None

    @property
    def has(self) -> dict[str, bool]:
        return {"HAS_BIAS": self.bias is not None, "HAS_RESIDUAL": self.residual is not None}

    @property
    def added(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Pointers to bias and residual; to something that is not read where there is none."""
        bias = self.out if self.bias is None else self.bias
        return bias, self.out if self.residual is None else self.residual


class TritonFp8Linear(StoredLinear):
    """A `Linear` of FP8 and plain matrices on a GPU, or in Triton's interpreter.

    Args:
        parts: the matrices, one below the other.
        bias: of all of them.
        tilings: measured about the processor.
    """

    def __init__(
        self,
        parts: list[StoredPart],
        bias: torch.Tensor | None,
        tilings: Fp8Tilings = DEFAULT_TILINGS,
    ) -> None:
        super().__init__(parts, bias)
        self._parts = parts
        self._facts = [MatrixFacts.of(part) for part in parts]
        self._bias = bias
        self._tilings = tilings
        self._rows = sum(facts.rows for facts in self._facts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, K] → [T, N]."""
        y = torch.empty(len(x), self._rows, dtype=x.dtype, device=x.device)
        return self._run(x, y, None)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y, in place; rounded once, after the sum."""
        return self._run(x, residual, residual)

    def _run(self, x: torch.Tensor, y: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        assert x.stride(1) == 1, "columns of x must lie closely"
        assert y.is_contiguous()
        start = 0
        for part, facts in zip(self._parts, self._facts, strict=True):
            mine = slice(start, start + facts.rows)
            target = _Target(
                y[:, mine],
                None if self._bias is None else self._bias[mine],
                None if residual is None else residual[:, mine],
            )
            if len(x) <= max(self._tilings.vector):
                self._vector(facts, x, target)
            elif len(x) <= max(self._tilings.tile):
                self._tile(facts, x, target)
            else:
                self._vendor(part, facts, x, target)
            start += facts.rows
        return y

    def _vector(self, facts: MatrixFacts, x: torch.Tensor, target: _Target) -> None:
        limit, tiling = next(each for each in self._tilings.vector.items() if len(x) <= each[0])
        blocks, ahead = vector_cut(facts, tiling)
        fp8_vector[(triton.cdiv(facts.rows, tiling.rows),)](
            x, *facts.pointers, *target.added, None, target.out,
            len(x), facts.rows, x.stride(0), target.out.stride(0),
            CHOSEN=0, TOKENS=power_of_two(limit), BN=tiling.rows, G=blocks, AHEAD=ahead,
            **facts.constants, **target.has, num_warps=tiling.warps, **LAUNCH,
        )  # fmt: skip

    def _tile(self, facts: MatrixFacts, x: torch.Tensor, target: _Target) -> None:
        tokens = len(x)
        limit, tiling = next(each for each in self._tilings.tile.items() if tokens <= each[0])
        block = min(power_of_two(tokens, _LEAST_TOKENS), limit)
        grid_rows = triton.cdiv(facts.rows, tiling.rows)
        split, share = shares(facts.constants["SIZE_IN"], grid_rows, tiling.programs)
        out, stride = target.out, target.out.stride(0)
        if split > 1:
            out = torch.empty(split, tokens, facts.rows, dtype=torch.float32, device=x.device)
            stride = facts.rows
        # Never begun before the kernel ahead of it ends: see `quant_linear`.
        fp8_tile_product[(grid_rows, split, triton.cdiv(tokens, block))](
            x, *facts.pointers, *target.added, out,
            tokens, facts.rows, x.stride(0), stride,
            SPLIT=split, SHARE=share, BM=block, BN=tiling.rows, **facts.constants, **target.has,
            num_warps=tiling.warps, num_stages=tiling.stages,
        )  # fmt: skip
        if split > 1:
            bias, residual = target.added
            add_partials[(triton.cdiv(facts.rows, _ADD_BLOCK), tokens)](
                out, target.out, residual, bias, facts.rows, target.out.stride(0),
                tokens * facts.rows, SPLIT=split, BLOCK=_ADD_BLOCK, **target.has, **LAUNCH,
            )  # fmt: skip

    def _vendor(
        self, part: StoredPart, facts: MatrixFacts, x: torch.Tensor, target: _Target
    ) -> None:
        if isinstance(part, torch.Tensor):
            _multiply(x, part, target.out, target.bias, target.residual)
            return
        wanted = self._tilings.scratch_elements // part.columns // _ROW_RUN * _ROW_RUN
        at_a_time = min(part.rows, max(_ROW_RUN, wanted))
        scratch = torch.empty(at_a_time, part.columns, dtype=x.dtype, device=x.device)
        for first in range(0, part.rows, at_a_time):
            count = min(at_a_time, part.rows - first)
            dequantise_fp8[(triton.cdiv(count, 16), triton.cdiv(part.columns, 512))](
                scratch, *facts.pointers, first, count, BN=16, BK=512, **facts.constants,
                num_warps=4, **LAUNCH,
            )  # fmt: skip
            these = slice(first, first + count)
            _multiply(
                x,
                scratch[:count],
                target.out[:, these],
                None if target.bias is None else target.bias[these],
                target.residual,
            )


def vector_cut(facts: MatrixFacts, tiling: VectorTiling) -> tuple[int, int]:
    """Blocks read at a time, and reads ahead: no more than there are."""
    there = triton.cdiv(facts.constants["SIZE_IN"], BLOCK)
    blocks = min(tiling.blocks, power_of_two(there))
    return blocks, min(tiling.ahead, triton.cdiv(there, blocks))


def shares(columns: int, programs: int, wanted: int) -> tuple[int, int]:
    """Shares of the columns, a power of two that fills the processor, and the columns of each.

    They do not depend on the rows of x, so neither does the order of a row's sum.
    """
    blocks, split = triton.cdiv(columns, BLOCK), 1
    while programs * split * 2 <= wanted and blocks // (split * 2) >= 2:
        split *= 2
    return split, triton.cdiv(blocks, split) * BLOCK


def _multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    """out = x W^T (+ bias), or that added to what is there already if it is the residual."""
    if residual is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(out, x, weight.t(), out=out)
    if bias is not None:
        out.add_(bias)
