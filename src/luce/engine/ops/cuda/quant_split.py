"""`quant_split.cu` for a format and a number of rows of x: products with quantised matrices.

Columns are split among the blocks of threads of a cluster and their warps; weights go from memory
right into registers; x, staged once for all of them, lies in shared memory. `docs/lab/quant.md` has
the counts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from luce.engine.device import kernel_limits
from luce.engine.device_kernel import DeviceKernel, KernelLaunch, KernelLimits
from luce.engine.ops.cuda.quant_operands import (
    SCALES,
    format_constants,
    tensor_operands,
)
from luce.engine.ops.cuda.quant_stage import (
    ROWS_FILE,
    TOKEN_BYTES,
    Rows,
    StagedRows,
    stage,
    stage_normed,
    takes_norm,
)
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.projection import NormWeight
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import BLOCK, QuantFormat, ScaleKind

PRIMITIVES = ("hopper.cuh", "quant_split_copies.cuh")
_FILES = (
    *PRIMITIVES,
    ROWS_FILE,
    "quant_split_weights.cuh",
    "quant_split_unit.cuh",
    "quant_split_vectors.cuh",
    "quant_split.cu",
)
_NAME = "quant_split"
PAIR_ROWS = 32
"""Of a unit, which is 32 rows by 256 columns."""
_SLOT_BYTES = 36 * 4
"""Of a row of x: sums of a part, and room that keeps banks apart."""
_WARPS = 8
"""Of a block of threads, one a multiprocessor."""
_BARRIER_BYTES = 8
"""Of a unit's x."""
_MOST_UNITS = 1 << 25
_BLOCKS = (2, 4, 8)
"""Of threads, that share a row: the fewest of which one has so little of x, and room for a
round."""
_MOST_BYTES = 160 << 10
"""Of shared memory where that is enough: the first-level cache, through which weights come, has
the rest."""
LEAST_ROUND = 8
"""Row pairs for which it is."""
MOST_ROWS = 16
"""Of x."""


@dataclass(frozen=True, slots=True)
class SplitTiling:
    """How the kernel is made: results are the same bits for all.

    Attributes:
        token_tiles: of 8 rows of x.
        is_early: it starts, and reads weights, while the kernel before it ends.
    """

    token_tiles: int
    is_early: bool = True

    @property
    def tokens(self) -> int:
        """Rows of x."""
        return 8 * self.token_tiles


# Measured (docs/lab/quant.md): for up to so many rows of x.
SPLIT_TILINGS: dict[int, SplitTiling] = {8: SplitTiling(1), MOST_ROWS: SplitTiling(2)}


@dataclass(frozen=True, slots=True)
class Cut:
    """How the work on a matrix is cut: what the order of a sum depends on.

    Attributes:
        clusters: each with a run of row pairs, as even as can be.
        blocks: of threads, of a cluster, each with a run of units of 256 columns.
        pairs: most of a cluster.
        units: most of a block of threads.
        round: pairs that a block's warps share out the units of, before all parts are added.
    """

    clusters: int
    blocks: int
    pairs: int
    units: int
    round: int

    @classmethod
    def of(cls, rows: int, columns: int, limits: KernelLimits) -> Cut:
        """For a matrix on a GPU.

        Raises:
            ValueError: there is no room for its columns.
        """
        all_units, all_pairs = columns // BLOCK, -(-rows // PAIR_ROWS)
        for most_blocks in _BLOCKS:
            blocks = min(most_blocks, all_units)
            units = -(-all_units // blocks)
            pairs = -(-all_pairs // min(_places(blocks, limits.processors), all_pairs))
            has_room = _most_pairs(units, limits.shared_bytes) >= min(LEAST_ROUND, pairs)
            if has_room and _x_bytes(units, MOST_ROWS) <= _MOST_BYTES:
                break
        most = _most_pairs(units, min(_MOST_BYTES, limits.shared_bytes))
        if most < LEAST_ROUND:
            most = _most_pairs(units, limits.shared_bytes)
        if most < 1:
            raise ValueError(f"there is no room for {columns} columns")
        rounds = -(-pairs // most)
        return cls(-(-all_pairs // pairs), blocks, pairs, units, -(-pairs // rounds))

    def nbytes(self, tokens: int) -> int:
        """Shared memory of a block of threads for so many rows of x."""
        return _x_bytes(self.units, tokens) + tokens * _SLOT_BYTES * (self.round + _WARPS - 1)


def _x_bytes(units: int, tokens: int) -> int:
    return units * (tokens * TOKEN_BYTES + _BARRIER_BYTES)


def _most_pairs(units: int, nbytes: int) -> int:
    """Of a round, with so many units of x in so much shared memory."""
    return (nbytes - _x_bytes(units, MOST_ROWS)) // (MOST_ROWS * _SLOT_BYTES) - (_WARPS - 1)


def _places(blocks: int, processors: int) -> int:
    """Clusters of so many blocks that run side by side: not every group of multiprocessors of a
    GPU divides by four, 132 of them have 30 places.
    """
    return max(1, processors // blocks * (10 if blocks > 2 else 11) // 11)


def refusal(planes: QuantPlanes) -> str | None:
    """Why these planes cannot be multiplied so, or None."""
    # Powers of two do not fit half precision.
    if planes.format.scale not in SCALES or planes.format.scale is ScaleKind.POWER:
        return f"not made for {planes.format.name}"
    if planes.columns % BLOCK:
        return f"made for columns in whole blocks of {BLOCK}"
    if planes.rows * (planes.columns // BLOCK) > _MOST_UNITS:
        return "made for smaller matrices"
    try:
        cut_of(planes)
    except ValueError as error:
        return str(error)
    return None


def constants(form: QuantFormat, tiling: SplitTiling, blocks: int) -> dict[str, int]:
    """What the kernel's text wants defined.

    Args:
        form: of the planes.
        tiling: how the kernel is made.
        blocks: of threads, of a cluster.
    """
    return {
        **format_constants(form),
        "GROUP_SCALE_BYTES": SCALES[form.scale].group_bytes,
        "X_HAS_SIXTEENTHS": 0,
        "TOKEN_TILES": tiling.token_tiles,
        "WARPS": _WARPS,
        "CLUSTER": blocks,
        "EARLY": int(tiling.is_early),
    }


_cut = functools.cache(Cut.of)


@functools.cache
def _compiled(
    form: QuantFormat, tiling: SplitTiling, blocks: int, shared_bytes: int, _device: torch.device
) -> DeviceKernel:
    """It is loaded on one device."""
    launch = KernelLaunch(shared_bytes, tiling.is_early)
    return compiled_kernel(_NAME, _FILES, constants(form, tiling, blocks), launch)


def tiling_of(tokens: int) -> SplitTiling:
    """That of `SPLIT_TILINGS` for so many rows of x."""
    return next(each for most, each in SPLIT_TILINGS.items() if tokens <= most)


def prepared(x: torch.Tensor, norm: NormWeight | None = None) -> StagedRows | None:
    """x, or norm(x), as `multiply` takes it, for any matrix; None where a norm is not taken.

    Args:
        x: bfloat16 [T, K], T at most `MOST_ROWS`; rows begin at multiples of 16 bytes.
        norm: of K.
    """
    tiles = tiling_of(len(x)).token_tiles
    if norm is None:
        return stage(x, tiles)
    return stage_normed(x, norm, tiles) if takes_norm(x, norm) else None


def multiply(
    planes: QuantPlanes,
    x: Rows,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tiling: SplitTiling | None = None,
) -> None:
    """out = x W^T (+ bias) (+ residual).

    Args:
        planes: W [N, K] that `refusal` accepts.
        x: what `prepared` makes, or takes.
        out: bfloat16 [T, N], rows at any distance; may be the residual.
        bias: bfloat16 [N].
        residual: like `out`.
        tiling: by default that of `SPLIT_TILINGS`.

    Raises:
        ValueError: there is no room for so many rows on this device.
        RuntimeError: the device does not take the kernel.
    """
    cut = cut_of(planes)
    _launch(cut, planes, x, (out, bias, residual), tiling or tiling_of(len(x)))


def cut_of(planes: QuantPlanes) -> Cut:
    """How the work on them is cut on their device.

    Raises:
        ValueError: there is no room for their columns.
    """
    return _cut(planes.rows, planes.columns, kernel_limits(planes.codes.device))


def multiply_by(cut: Cut, planes: QuantPlanes, x: Rows, out: torch.Tensor) -> None:
    """out = x W^T as in `multiply`, by a cut that others of its clusters' size stand for.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    _launch(cut, planes, x, (out, None, None), tiling_of(len(x)))


def _launch(
    cut: Cut,
    planes: QuantPlanes,
    x: Rows,
    results: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None],
    tiling: SplitTiling,
) -> None:
    """Results: out, bias and residual."""
    out, bias, residual = results
    rows = x if isinstance(x, StagedRows) else stage(x, tiling.token_tiles)
    assert rows.token_tiles == tiling.token_tiles, "x is staged for another tiling"
    shared_bytes = cut.nbytes(tiling.tokens)
    kernel = _compiled(planes.format, tiling, cut.blocks, shared_bytes, out.device)
    kernel(
        (cut.clusters * cut.blocks, 1, 1),
        (32 * _WARPS, 1, 1),
        [
            *tensor_operands(planes, rows.image, out, bias, residual),
            rows.tokens,
            planes.rows,
            planes.columns // BLOCK,
            out.stride(0),
            int(bias is not None),
            int(residual is not None),
            cut.round,
        ],
    )
