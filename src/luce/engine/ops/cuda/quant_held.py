"""`quant_held.cu` for a format and a number of rows of x: products with quantised matrices.

Each warp holds x of 256 columns in its registers; weights come through a ring of shared memory.
`docs/lab/quant.md` has the counts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from luce.engine.device import kernel_limits
from luce.engine.device_kernel import DeviceKernel, EarlyKernel, KernelLaunch, KernelLimits
from luce.engine.ops.cuda.quant_operands import (
    SCALES,
    code_parts,
    format_constants,
    tensor_operands,
)
from luce.engine.ops.cuda.quant_split import PRIMITIVES, tiling_of
from luce.engine.ops.cuda.quant_stage import ROWS_FILE, Rows, StagedRows, stage
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import BLOCK, GROUP, QuantFormat, ScaleKind

_FILES = (*PRIMITIVES, ROWS_FILE, "quant_split_weights.cuh", "quant_held.cu")
_NAME = "quant_held"
_TILE_ROWS = 8
"""Of the matrix, of a product."""
_MOST_UNITS = 20
"""Of 256 columns, and warps, of a block of threads: five on each of a processor's schedulers."""
_TILES = (2, 1)
"""Of a stage, of a warp: what there is room for."""
_DEPTH = 3
"""Stages whose sums may lie about."""
_MOST_STAGES = 8
_OTHER_WARPS = 4
"""One that fills the ring, and three that add up."""
_REGISTERS = 65536
"""Of a processor."""
_OTHER_REGISTERS = 32
_BARRIER_BYTES = 8
_LEAST_ROWS, _MOST_COLUMNS = 1 << 16, 4096
_LINE = 16
_TOKEN_BYTES = 36
"""Of sums of a warp's x, and what its products are to be multiplied by."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How the work on a matrix is cut.

    Attributes:
        units: of 256 columns, each a warp's.
        groups: of warps, with rows of their own.
        tiles: of eight rows, of a warp, of a stage of the ring.
        blocks: of threads, each with a run of stages' rows, as even as can be.
        stages: of the ring.
    """

    units: int
    groups: int
    tiles: int
    blocks: int
    stages: int

    @classmethod
    def of(cls, planes: QuantPlanes, limits: KernelLimits) -> Cut:
        """For a matrix on a GPU.

        Raises:
            ValueError: there is no room for it.
        """
        units = planes.columns // BLOCK
        if units > _MOST_UNITS:
            raise ValueError(f"there are no warps for {planes.columns} columns")
        groups = next(n for n in (4, 2, 1) if n * units <= _MOST_UNITS)
        for tiles in _TILES:
            all_stages = -(-planes.rows // (_TILE_ROWS * tiles * groups))
            blocks = min(limits.processors, all_stages)
            most = -(-all_stages // blocks)
            cut = cls(units, groups, tiles, blocks, 0)
            room = limits.shared_bytes - cut.nbytes(planes.format, 16)
            stages = room // (cut._stage_bytes(planes.format) + 2 * _BARRIER_BYTES)
            stages = min(stages, _MOST_STAGES, most)
            if stages >= min(2, most):
                return replace(cut, stages=stages)
        raise ValueError(f"there is no room for {planes.columns} columns")

    def for_trial(self) -> tuple[Cut, int]:
        """The same kernel for two blocks, and rows that take the ring round twice."""
        stages = 2 * self.stages + 1
        return replace(self, blocks=2), 2 * stages * _TILE_ROWS * self.tiles * self.groups

    @property
    def multipliers(self) -> int:
        """Warps that multiply, in fours."""
        return -(-self.units * self.groups // 4) * 4

    @property
    def registers(self) -> int:
        """Of each of their threads, of what all have; 0: as many as the compiler likes."""
        warps = self.multipliers + _OTHER_WARPS
        all_registers = _REGISTERS // (32 * warps) // 8 * 8 * warps
        own = (all_registers - _OTHER_WARPS * _OTHER_REGISTERS) // self.multipliers
        return own // 8 * 8 if self.multipliers > 8 else 0

    def _stage_bytes(self, form: QuantFormat) -> int:
        scales, (low, high) = SCALES[form.scale], code_parts(form)
        codes = low * self.units * BLOCK // 2 + _LINE
        bits = high * self.units * GROUP
        bits += 0 if high * self.units % 2 else 2 * _LINE
        factors = self.units * scales.group_bytes * BLOCK // GROUP
        factors += 0 if factors // _LINE % 2 else _LINE
        row = codes + (bits if high else 0) + factors + self.units * scales.block_bytes
        return -(-row * _TILE_ROWS * self.tiles * self.groups // 128) * 128

    def nbytes(self, form: QuantFormat, tokens: int) -> int:
        """Shared memory of a block of threads."""
        slots = self.units * _DEPTH * self.groups * self.tiles
        barriers = 2 * self.stages + 2 * _DEPTH
        return (
            self.stages * self._stage_bytes(form)
            + slots * tokens * _TILE_ROWS * 4
            + self.units * self.groups * tokens * _TOKEN_BYTES
            + barriers * _BARRIER_BYTES
        )


def refusal(planes: QuantPlanes) -> str | None:
    """Why these planes cannot be multiplied so, or None."""
    kind = planes.format.scale
    # Powers of two do not fit half precision; bulk copies take no fewer than 16 bytes.
    if kind not in SCALES or kind in (ScaleKind.POWER, ScaleKind.BYTE):
        return f"not made for {planes.format.name}"
    if planes.columns % BLOCK or planes.rows % _TILE_ROWS:
        return f"made for columns in whole blocks of {BLOCK} and rows in eights"
    try:
        cut_of(planes)
    except ValueError as error:
        return str(error)
    return None


def pays(planes: QuantPlanes) -> bool:
    """Whether it is faster than `quant_split`, as measured (docs/lab/quant.md): it takes longer
    to begin, and less for each row.
    """
    is_tall = planes.rows >= _LEAST_ROWS and planes.columns <= _MOST_COLUMNS
    return is_tall and planes.format.scale is ScaleKind.SIXTEEN


def constants(form: QuantFormat, cut: Cut, token_tiles: int) -> dict[str, int]:
    """What the kernel's text wants defined."""
    return {
        **format_constants(form),
        "GROUP_SCALE_BYTES": SCALES[form.scale].group_bytes,
        "X_HAS_SIXTEENTHS": int(form.scale is ScaleKind.BYTE_OFFSET),
        "TOKEN_TILES": token_tiles,
        "UNITS": cut.units,
        "ROW_GROUPS": cut.groups,
        "TILES": cut.tiles,
        "STAGES": cut.stages,
        "DEPTH": _DEPTH,
        "MULTIPLIER_REGISTERS": cut.registers,
        "OTHER_REGISTERS": _OTHER_REGISTERS,
        "EARLY": 1,
    }


@functools.cache
def _compiled(form: QuantFormat, cut: Cut, token_tiles: int, _device: torch.device) -> DeviceKernel:
    """It is loaded on one device.

    Raises:
        RuntimeError: the device does not take it, or its warps would wait for registers for ever.
    """
    launch = KernelLaunch(cut.nbytes(form, 8 * token_tiles), is_early=True, is_specific=True)
    kernel = compiled_kernel(_NAME, _FILES, constants(form, cut, token_tiles), launch)
    if isinstance(kernel, EarlyKernel) and cut.registers:
        wanted = cut.multipliers * cut.registers + _OTHER_WARPS * _OTHER_REGISTERS
        there = (cut.multipliers + _OTHER_WARPS) * (-(-kernel.registers() // 8) * 8)
        if wanted > there:
            raise RuntimeError(f"its warps share {there} registers a lane and want {wanted}")
    return kernel


@functools.cache
def _cut(form: QuantFormat, rows: int, columns: int, limits: KernelLimits) -> Cut:
    nothing = torch.empty(0)
    return Cut.of(QuantPlanes(form, rows, columns, nothing, None, nothing, None), limits)


def cut_of(planes: QuantPlanes) -> Cut:
    """How the work on them is cut on their device.

    Raises:
        ValueError: there is no room for their columns.
    """
    limits = kernel_limits(planes.codes.device)
    return _cut(planes.format, planes.rows, planes.columns, limits)


def multiply(
    planes: QuantPlanes,
    x: Rows,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    """out = x W^T (+ bias) (+ residual).

    Args:
        planes: W [N, K] that `refusal` accepts.
        x: what `quant_split.prepared` makes, or takes.
        out: bfloat16 [T, N], rows at any distance; may be the residual.
        bias: bfloat16 [N].
        residual: like `out`.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    _launch(cut_of(planes), planes, x, (out, bias, residual))


def multiply_by(cut: Cut, planes: QuantPlanes, x: Rows, out: torch.Tensor) -> None:
    """out = x W^T as in `multiply`, by a cut that `Cut.for_trial` made.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    _launch(cut, planes, x, (out, None, None))


def _launch(
    cut: Cut,
    planes: QuantPlanes,
    x: Rows,
    results: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None],
) -> None:
    """Results: out, bias and residual."""
    out, bias, residual = results
    tiles = tiling_of(len(x)).token_tiles
    rows = x if isinstance(x, StagedRows) else stage(x, tiles)
    kernel = _compiled(planes.format, replace(cut, blocks=1), tiles, out.device)
    kernel(
        (cut.blocks, 1, 1),
        (32 * (cut.multipliers + _OTHER_WARPS), 1, 1),
        [
            *tensor_operands(planes, rows.image, out, bias, residual),
            rows.tokens,
            planes.rows,
            out.stride(0),
            int(bias is not None),
            int(residual is not None),
        ],
    )
