"""`quant_mma.cu` compiled for a format and a tiling: four-bit products for a few rows.

Triton cannot say which thread holds what, so its tiles go through shared memory on their way to
the tensor cores. Here they never do. From 16 rows on x, read by every block anew, bounds it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from luce.engine.device_kernel import DeviceKernel
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import BLOCK, GROUP, CodePlane, QuantFormat, ScaleKind

_FILES = ("quant_mma.cu",)
_SCALES = {ScaleKind.HALF: 0, ScaleKind.HALF_OFFSET: 1, ScaleKind.BYTE_OFFSET: 2}
_TILE_TOKENS = 8
WARPS = 8
"""Of a block. The order of a sum depends on it, so it is one for all numbers of rows."""


@dataclass(frozen=True, slots=True)
class MmaTiling:
    """How the kernel cuts its work.

    Attributes:
        token_tiles: of 8 rows of x, of a block.
        row_tiles: of 16 rows of the matrix, of a block.
        blocks: of threads that a multiprocessor shall hold.
    """

    token_tiles: int
    row_tiles: int
    blocks: int


# Measured on an H200 (docs/lab/quant.md): for up to so many rows of x.
MMA_TILINGS: dict[int, MmaTiling] = {
    8: MmaTiling(1, 2, 2),
    16: MmaTiling(2, 2, 2),
    64: MmaTiling(4, 2, 1),
}


def refusal(planes: QuantPlanes) -> str | None:
    """Why these planes cannot be multiplied so, or None."""
    form = planes.format
    is_plain = form.codes is CodePlane.FOUR and form.high is None and form.table is None
    if not is_plain or form.scale not in _SCALES:
        return f"made for plain four-bit codes, not {form.name}"
    if planes.columns % BLOCK:
        return f"made for columns in whole runs of {BLOCK}"
    return None


def constants(
    form: QuantFormat, tiling: MmaTiling, has_bias: bool, has_residual: bool
) -> dict[str, int]:
    """What the kernel's text wants defined."""
    return {
        "SCALE_HALF": 0,
        "SCALE_HALF_OFFSET": 1,
        "SCALE_BYTE_OFFSET": 2,
        "SCALE": _SCALES[form.scale],
        "ZERO": form.zero,
        "TOKEN_TILES": tiling.token_tiles,
        "ROW_TILES": tiling.row_tiles,
        "MIN_BLOCKS": tiling.blocks,
        "WARPS": WARPS,
        "HAS_BIAS": int(has_bias),
        "HAS_RESIDUAL": int(has_residual),
    }


@functools.cache
def _compiled(
    form: QuantFormat, tiling: MmaTiling, has_bias: bool, has_residual: bool
) -> DeviceKernel:
    values = constants(form, tiling, has_bias, has_residual)
    return compiled_kernel("quant_mma", _FILES, values)


def multiply(
    planes: QuantPlanes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tiling: MmaTiling | None = None,
) -> None:
    """out = x W^T (+ bias) (+ residual).

    Args:
        planes: W [N, K] that `refusal` accepts.
        x: bfloat16 [T, K], rows close together, T at most the last of `MMA_TILINGS`.
        out: bfloat16 [T, N], rows at any distance; may be the residual.
        bias: bfloat16 [N].
        residual: like `out`.
        tiling: by default the measured one.
    """
    tokens = len(x)
    if tiling is None:
        tiling = next(each for most, each in MMA_TILINGS.items() if tokens <= most)
    kernel = _compiled(planes.format, tiling, bias is not None, residual is not None)
    grid = (
        -(-tokens // (_TILE_TOKENS * tiling.token_tiles)),
        -(-planes.rows // (16 * tiling.row_tiles)),
        1,
    )
    kernel(
        grid,
        (32 * WARPS, 1, 1),
        [
            x,
            out,
            out if residual is None else residual,
            x if bias is None else bias,
            planes.codes,
            planes.scales,
            planes.scales if planes.blocks is None else planes.blocks,
            tokens,
            planes.rows,
            planes.columns // GROUP,
            x.stride(0),
            out.stride(0),
        ],
    )
