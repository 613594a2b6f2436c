"""A ring of shared memory (`quant_stages.cuh`) and a tiling, for a format of quantised planes.

A stage holds a unit of the matrix, some rows by a span of columns, and that span of x. Stages are
filled asynchronously, some units ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

from luce.engine.device_kernel import KernelLimits
from luce.engine.ops.cuda.quant_operands import SCALES, code_parts, format_constants
from luce.loaders.quant_formats import QuantFormat

SPAN = 128
"""Columns of a stage."""
_GROUPS = 4
"""Of a row, in a stage."""
_FEED_WARPS = 4
_FLAG_BYTES = 16
_BARRIER_BYTES = 16
"""Of a stage: one when it is full, one when it is free."""
_LEAST_STAGES = 3


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
        """Of a block: those that multiply, and those that feed them."""
        return 32 * (self.row_warps + _FEED_WARPS)


def stage_bytes(form: QuantFormat, tiling: RingTiling) -> int:
    """Of shared memory, for a unit of the matrix and x."""
    scales, (low, high) = SCALES[form.scale], code_parts(form)
    line = 64 * low + 16 * high + _GROUPS * scales.group_bytes
    return tiling.rows * (line + (4 if scales.block_bytes else 0)) + tiling.tokens * 2 * SPAN


@dataclass(frozen=True, slots=True)
class Ring:
    """Shared memory of a block of threads.

    Attributes:
        stages: of it.
        nbytes: all of it, with barriers and a flag.
    """

    stages: int
    nbytes: int

    @classmethod
    def of(cls, form: QuantFormat, tiling: RingTiling, limits: KernelLimits) -> Ring:
        """The deepest one that fits.

        Raises:
            ValueError: too few stages fit.
        """
        stage = stage_bytes(form, tiling) + _BARRIER_BYTES
        room = limits.shared_bytes_of(tiling.blocks) - _FLAG_BYTES
        stages = min(tiling.stages, room // stage)
        if stages < _LEAST_STAGES:
            raise ValueError(f"{tiling} leaves no room for enough stages of {form.name}")
        return cls(stages, stages * stage + _FLAG_BYTES)


def constants(form: QuantFormat, tiling: RingTiling, stages: int) -> dict[str, int]:
    """What the text of the stages, and of codes in them, wants defined."""
    return {
        **format_constants(form),
        "SCALE_BYTES": _GROUPS * SCALES[form.scale].group_bytes,
        "HAS_OFFSET": int(form.has_offset),
        "ROW_WARPS": tiling.row_warps,
        "ROW_TILES": tiling.row_tiles,
        "TOKEN_TILES": tiling.token_tiles,
        "BLOCKS": tiling.blocks,
        "EARLY": int(tiling.is_early),
        "STAGES": stages,
    }
