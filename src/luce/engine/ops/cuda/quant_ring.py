"""A ring of shared memory (`quant_stages.cuh`) and a tiling, for a format of quantised planes.

A stage holds a unit of the matrix, some rows by a span of columns, and that span of x. Stages are
filled asynchronously, some units ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

from luce.engine.device_kernel import KernelLimits
from luce.loaders.quant_formats import CodePlane, QuantFormat, ScaleKind

SPAN = 128
"""Columns of a stage."""
_FLAG_BYTES = 16
_LEAST_STAGES = 3


@dataclass(frozen=True, slots=True)
class _StoredScales:
    """How a kind of scales lies in a stage.

    Attributes:
        number: the kernel's name for it.
        stage_bytes: of a row's four groups.
        block_bytes: of an entry for 256 columns.
    """

    number: int
    stage_bytes: int
    block_bytes: int = 0


_SCALES = {
    ScaleKind.HALF: _StoredScales(0, 8),
    ScaleKind.HALF_OFFSET: _StoredScales(1, 16),
    ScaleKind.BYTE_OFFSET: _StoredScales(2, 8, 4),
    ScaleKind.POWER: _StoredScales(3, 4),
    ScaleKind.BYTE: _StoredScales(4, 4, 2),
    ScaleKind.SIXTEEN: _StoredScales(5, 8, 2),
}
_HIGH_PARTS = {None: 0, CodePlane.ONE: 1, CodePlane.TWO: 2}


@dataclass(frozen=True, slots=True)
class RingTiling:
    """How a kernel cuts its work.

    Results are the same bits for tilings of the same `bits_key`.

    Attributes:
        row_warps: of a block of threads, with rows of their own; four multiply together.
        row_tiles: of 16 rows of the matrix, of a warp.
        token_tiles: of 8 rows of x: 1, 2, 4 or 8.
        blocks: of threads, that a multiprocessor holds.
        stages: most of the ring; as many of them as fit are used.
        is_early: it starts, and reads weights, while the kernel before it ends.
    """

    row_warps: int
    row_tiles: int
    token_tiles: int
    blocks: int = 1
    stages: int = 4
    is_early: bool = False

    @property
    def rows(self) -> int:
        """Of the matrix, of a block of threads."""
        return 16 * self.row_warps * self.row_tiles

    @property
    def tokens(self) -> int:
        """Rows of x, of a block of threads."""
        return 8 * self.token_tiles

    @property
    def bits_key(self) -> tuple[int, int]:
        """What a sum's order depends on: rows and number of blocks of threads."""
        return self.rows, self.blocks

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.row_warps


def is_known(form: QuantFormat) -> bool:
    """Whether a stage can hold the format's scales."""
    return form.scale in _SCALES


def stage_bytes(form: QuantFormat, tiling: RingTiling) -> int:
    """Of shared memory, for a unit of the matrix and x."""
    scales, code_parts = _SCALES[form.scale], form.codes.value // 4
    line = 64 * code_parts + 16 * _HIGH_PARTS[form.high] + scales.stage_bytes
    return tiling.rows * (line + (4 if scales.block_bytes else 0)) + tiling.tokens * 2 * SPAN


@dataclass(frozen=True, slots=True)
class Ring:
    """Shared memory of a block of threads.

    Attributes:
        stages: of it.
        nbytes: all of it, with two turns' x as products of four warps want it, and a flag.
    """

    stages: int
    nbytes: int

    @classmethod
    def of(cls, form: QuantFormat, tiling: RingTiling, limits: KernelLimits) -> Ring:
        """The deepest one that fits.

        Raises:
            ValueError: too few stages fit.
        """
        stage = stage_bytes(form, tiling)
        rest = _FLAG_BYTES + 2 * tiling.tokens * 2 * SPAN
        stages = min(tiling.stages, (limits.shared_bytes_of(tiling.blocks) - rest) // stage)
        if stages < _LEAST_STAGES:
            raise ValueError(f"{tiling} leaves no room for enough stages of {form.name}")
        return cls(stages, stages * stage + rest)


def constants(form: QuantFormat, tiling: RingTiling, stages: int) -> dict[str, int]:
    """What the text of the stages, and of codes in them, wants defined."""
    scales = _SCALES[form.scale]
    table = bytes(value & 0xFF for value in form.table or (0,) * 16)
    words = [int.from_bytes(table[i : i + 4], "little") for i in range(0, 16, 4)]
    return {
        **{f"SCALE_{kind.name}": each.number for kind, each in _SCALES.items()},
        **{f"TABLE_{index}": word for index, word in enumerate(words)},
        "SCALE": scales.number,
        "SCALE_BYTES": scales.stage_bytes,
        "BLOCK_BYTES": scales.block_bytes,
        "CODES": form.codes.value,
        "CODE_PARTS": form.codes.value // 4,
        "HIGH": 0 if form.high is None else form.high.value,
        "HIGH_PARTS": _HIGH_PARTS[form.high],
        "TABLE": int(form.table is not None),
        "ZERO": form.zero,
        # Offsets go into weights: no sums of x are kept beside the stages.
        "HAS_OFFSET": 0,
        "ROW_WARPS": tiling.row_warps,
        "ROW_TILES": tiling.row_tiles,
        "TOKEN_TILES": tiling.token_tiles,
        "TOKEN_WARPS": 1,
        "BLOCKS": tiling.blocks,
        "EARLY": int(tiling.is_early),
        "TOGETHER": 1,
        "STAGES": stages,
    }
