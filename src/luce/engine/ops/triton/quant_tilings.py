"""How the quantised kernels cut a matrix, and what is the best for a processor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VectorTiling:
    """How `quant_vector` cuts a matrix.

    Attributes:
        rows: of the matrix a program makes.
        groups: of columns it reads at a time.
        warps: of a program.
    """

    rows: int
    groups: int
    warps: int


@dataclass(frozen=True, slots=True)
class TileTiling:
    """How `quant_tile_product` cuts a matrix.

    Attributes:
        rows: of the matrix a program makes.
        groups: of columns it reads at a time.
        warps: of a program.
        stages: of its software pipeline.
        programs: fewer than these for the whole matrix, and the columns are shared out.
    """

    rows: int
    groups: int
    warps: int
    stages: int
    programs: int


@dataclass(frozen=True, slots=True)
class QuantTilings:
    """Everything measured about a processor.

    Attributes:
        vector: for each number of rows of x up to the last of them.
        tile: for numbers of rows of x up to each key.
        tile_tokens: fewest and most rows of x of a tile.
        quantise_from: rows of x from which on it is quantised by a kernel of its own, once.
        quantise_rows: of a matrix, from which on one row of x is, too.
        scratch_elements: of bfloat16 weights made at a time for a vendor product.
        wide_rows: matrices of at most so many rows are read twice as many groups at a time, by
            twice the warps: their programs are too few to wait for memory once for each half.
    """

    vector: dict[int, VectorTiling]
    tile: dict[int, TileTiling]
    tile_tokens: tuple[int, int] = (16, 128)
    quantise_from: int = 2
    quantise_rows: int = 32768
    scratch_elements: int = 1 << 26
    wide_rows: int = 0


# Measured on an H200: docs/lab/quant.md. All vector tilings have the same groups and warps: the
# order of a sum depends on those, so a row's result is the same for one row as for eight.
DEFAULT_TILINGS = QuantTilings(
    vector={
        4: VectorTiling(8, 64, 2),
        8: VectorTiling(4, 64, 2),
    },
    tile={
        32: TileTiling(64, 4, 4, 3, 528),
        64: TileTiling(64, 4, 4, 3, 264),
        128: TileTiling(128, 2, 4, 4, 264),
    },
    # 8B's attention and down products; 5,120 rows were slower for it.
    wide_rows=4096,
)
