"""`quant_stream.cu` for a format and a tiling: products of 1 to 64 rows with quantised matrices.

Weights and x come through a ring of shared memory that is filled asynchronously, several stages
ahead; every warp has rows of the matrix of its own, and x is read once by a block of threads for
hundreds of rows. `docs/lab/quant.md` has the counts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from luce.engine.device import kernel_limits
from luce.engine.device_kernel import DeviceKernel, KernelLaunch, KernelLimits
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import CodePlane, QuantFormat, ScaleKind

SPAN = 128
"""Columns of a stage."""
_PARTS = ("quant_stages.cuh", "quant_codes.cuh", "quant_places.cuh", "quant_shares.cuh")
_FILES = {
    False: (*_PARTS, "quant_alone.cuh", "quant_stream.cu"),
    True: (*_PARTS, "quant_arrange.cuh", "quant_together.cuh", "quant_stream.cu"),
}
_NAME = "quant_stream"
_GROUPS = 4
_MOST_ROW_BLOCKS = 1 << 14
_MOST_UNITS = 1 << 21
"""Times blocks of threads, of which there are hundreds, they shall fit 32 bits."""
_FLAG_BYTES = 16


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
class StreamTiling:
    """How the kernel cuts its work.

    Results are the same bits for tilings of the same `bits_key`.

    Attributes:
        row_warps: of a block of threads, with rows of their own.
        row_tiles: of 16 rows of the matrix, of a warp.
        token_tiles: of 8 rows of x, of a warp.
        token_warps: with the same rows of the matrix and other rows of x.
        blocks: of threads, that a multiprocessor holds.
        stages: most of the ring; as many of them as fit are used.
        is_early: it starts, and reads weights, while the kernel before it ends.
        is_together: four warps multiply together, a multiple of which `row_warps` is; on Hopper
            alone, with 1, 2, 4 or 8 `token_tiles` and one of `token_warps`.
    """

    row_warps: int
    row_tiles: int
    token_tiles: int
    token_warps: int = 1
    blocks: int = 1
    stages: int = 6
    is_early: bool = False
    is_together: bool = False

    @property
    def rows(self) -> int:
        """Of the matrix, of a block of threads."""
        return 16 * self.row_warps * self.row_tiles

    @property
    def tokens(self) -> int:
        """Rows of x, of a block of threads."""
        return 8 * self.token_warps * self.token_tiles

    @property
    def bits_key(self) -> tuple[int, int, bool]:
        """What a sum's order depends on: rows and number of blocks, and who multiplies."""
        return self.rows, self.blocks, self.is_together

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.row_warps * self.token_warps


Tilings = dict[int, StreamTiling]
"""For up to so many rows of x. All have the same `bits_key`: a row's result is the same bits for
every number of rows."""

# Counted, not measured yet: from so many rows of the matrix on.
STREAM_TILINGS: dict[int, Tilings] = {
    0: {
        8: StreamTiling(4, 4, 1, is_early=True),
        16: StreamTiling(8, 2, 2, is_early=True),
        32: StreamTiling(8, 2, 4, is_early=True),
        64: StreamTiling(8, 2, 8, is_early=True),
    },
}
MOST_ROWS = 64
"""Of x."""


def tilings_for(rows: int) -> Tilings:
    """Those of a matrix with so many rows."""
    return STREAM_TILINGS[max(least for least in STREAM_TILINGS if rows >= least)]


def stage_bytes(form: QuantFormat, tiling: StreamTiling) -> int:
    """Of shared memory, for a unit of the matrix and x."""
    scales, code_parts = _SCALES[form.scale], form.codes.value // 4
    line = 64 * code_parts + 16 * _HIGH_PARTS[form.high] + scales.stage_bytes
    return tiling.rows * (line + (4 if scales.block_bytes else 0)) + tiling.tokens * 2 * SPAN


@dataclass(frozen=True, slots=True)
class Ring:
    """Shared memory of a block of threads.

    Attributes:
        stages: of it.
        nbytes: all of it.
    """

    stages: int
    nbytes: int

    @classmethod
    def of(cls, form: QuantFormat, tiling: StreamTiling, limits: KernelLimits) -> Ring:
        """The deepest one that fits.

        Raises:
            ValueError: too few stages fit.
        """
        stage = stage_bytes(form, tiling)
        rest = _FLAG_BYTES + form.has_offset * 2 * tiling.tokens * _GROUPS * 4
        rest += tiling.is_together * 2 * tiling.tokens * 2 * SPAN
        room = limits.shared_bytes_of(tiling.blocks) - rest
        stages = min(tiling.stages, room // stage)
        if stages < 2 + (form.has_offset or tiling.is_together):
            raise ValueError(f"{tiling} leaves no room for enough stages of {form.name}")
        return cls(stages, stages * stage + rest)


def refusal(planes: QuantPlanes) -> str | None:
    """Why these planes cannot be multiplied so, or None."""
    form = planes.format
    if form.scale not in _SCALES:
        return f"not made for {form.name}"
    if planes.columns % SPAN:
        return f"made for columns in whole spans of {SPAN}"
    least = min(each.rows for each in tilings_for(planes.rows).values())
    row_blocks = -(-planes.rows // least)
    if row_blocks > _MOST_ROW_BLOCKS or row_blocks * (planes.columns // SPAN) > _MOST_UNITS:
        return "made for smaller matrices"
    return None


def constants(form: QuantFormat, tiling: StreamTiling, stages: int) -> dict[str, int]:
    """What the kernel's text wants defined."""
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
        "HAS_OFFSET": int(form.has_offset),
        "ROW_WARPS": tiling.row_warps,
        "ROW_TILES": tiling.row_tiles,
        "TOKEN_TILES": tiling.token_tiles,
        "TOKEN_WARPS": tiling.token_warps,
        "BLOCKS": tiling.blocks,
        "EARLY": int(tiling.is_early),
        "TOGETHER": int(tiling.is_together),
        "STAGES": stages,
    }


@functools.cache
def _compiled(form: QuantFormat, tiling: StreamTiling, ring: Ring) -> DeviceKernel:
    launch = KernelLaunch(ring.nbytes, tiling.is_early, tiling.is_together)
    files = _FILES[tiling.is_together]
    return compiled_kernel(_NAME, files, constants(form, tiling, ring.stages), launch)


@functools.cache
def arrivals(device: torch.device) -> torch.Tensor:
    """How many blocks of threads have left their part of each row block: 0 between launches."""
    return torch.zeros(_MOST_ROW_BLOCKS, dtype=torch.int32, device=device)


@dataclass(frozen=True, slots=True)
class StreamLaunch:
    """A launch, but for the device's part in it.

    Attributes:
        tiling: of the kernel.
        grid: blocks of threads.
        partials: float32 elements for sums of shared row blocks.
        numbers: the arguments after the pointers.
    """

    tiling: StreamTiling
    grid: int
    partials: int
    numbers: tuple[int, ...]

    @classmethod
    def of(
        cls,
        planes: QuantPlanes,
        x: torch.Tensor,
        out: torch.Tensor,
        tiling: StreamTiling,
        processors: int,
    ) -> StreamLaunch:
        """For `multiply`'s arguments; bias and residual are not counted in `numbers` yet."""
        spans = planes.columns // SPAN
        units = -(-planes.rows // tiling.rows) * spans
        grid = min(processors * tiling.blocks, units)
        numbers = (len(x), planes.rows, spans, x.stride(0), out.stride(0))
        return cls(tiling, grid, grid * 2 * tiling.rows * tiling.tokens, numbers)


def multiply(
    planes: QuantPlanes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tiling: StreamTiling | None = None,
) -> None:
    """out = x W^T (+ bias) (+ residual).

    Kernels of one device share their counters: no two run at the same time.

    Args:
        planes: W [N, K] that `refusal` accepts.
        x: bfloat16 [T, K], T at most `MOST_ROWS`; rows begin at multiples of 16 bytes.
        out: bfloat16 [T, N], rows at any distance; may be the residual.
        bias: bfloat16 [N].
        residual: like `out`.
        tiling: by default that of `tilings_for`.

    Raises:
        ValueError: the tiling has no room on this device.
        RuntimeError: the device does not take the kernel.
    """
    if tiling is None:
        tilings = tilings_for(planes.rows)
        tiling = next(each for most, each in tilings.items() if len(x) <= most)
    limits = kernel_limits(x.device)
    kernel = _compiled(planes.format, tiling, Ring.of(planes.format, tiling, limits))
    launch = StreamLaunch.of(planes, x, out, tiling, limits.processors)
    partials = torch.empty(launch.partials, dtype=torch.float32, device=x.device)
    kernel(
        (launch.grid, 1, 1),
        (tiling.threads, 1, 1),
        [
            x,
            out,
            out if residual is None else residual,
            x if bias is None else bias,
            planes.codes,
            planes.codes if planes.high is None else planes.high,
            planes.scales,
            planes.scales if planes.blocks is None else planes.blocks,
            partials,
            arrivals(x.device),
            *launch.numbers,
            int(bias is not None),
            int(residual is not None),
        ],
    )
