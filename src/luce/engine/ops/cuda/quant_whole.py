"""`quant_whole.cu` for a format and a tiling: products of dozens of rows with quantised matrices.

Weights and x come through a ring of shared memory that is filled asynchronously, some stages
ahead; codes become whole bfloat16 weights, rounded once from float32. Blocks of threads share out
all units of the matrix as one line. `docs/lab/quant.md` has the figures.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from luce.engine.device import kernel_limits
from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda.quant_operands import SCALES, number_operands, tensor_operands
from luce.engine.ops.cuda.quant_ring import SPAN, Ring, RingTiling, constants
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import QuantFormat

_FILES = (
    "hopper.cuh",
    "quant_stages.cuh",
    "quant_codes.cuh",
    "quant_places.cuh",
    "quant_shares.cuh",
    "quant_arrange.cuh",
    "quant_weights.cuh",
    "quant_whole.cu",
)
_NAME = "quant_whole"
_MOST_ROW_BLOCKS = 1 << 14
_MOST_UNITS = 1 << 21
"""Times blocks of threads, of which there are hundreds, they shall fit 32 bits."""
_FULL = 0.9
"""Of a processor's places: so many taken are enough where no row block is cut unevenly then."""

WHOLE_TILINGS: dict[int, RingTiling] = {
    32: RingTiling(12, 1, 4, is_early=True),
    64: RingTiling(12, 1, 8, is_early=True),
}
"""For up to so many rows of x. All have the same `bits_key`: a row's result is the same bits for
every number of rows."""
MOST_ROWS = max(WHOLE_TILINGS)
"""Of x."""


def refusal(planes: QuantPlanes) -> str | None:
    """Why these planes cannot be multiplied so, or None."""
    if planes.format.scale not in SCALES:
        return f"not made for {planes.format.name}"
    if planes.columns % SPAN:
        return f"made for columns in whole spans of {SPAN}"
    least = min(each.rows for each in WHOLE_TILINGS.values())
    row_blocks = -(-planes.rows // least)
    if row_blocks > _MOST_ROW_BLOCKS or row_blocks * (planes.columns // SPAN) > _MOST_UNITS:
        return "made for smaller matrices"
    return None


@functools.cache
def _compiled(form: QuantFormat, tiling: RingTiling, ring: Ring) -> DeviceKernel:
    launch = KernelLaunch(ring.nbytes, tiling.is_early, is_specific=True)
    return compiled_kernel(_NAME, _FILES, constants(form, tiling, ring.stages), launch)


@functools.cache
def arrivals(device: torch.device) -> torch.Tensor:
    """How many blocks of threads have left their part of each row block: 0 between launches."""
    return torch.zeros(_MOST_ROW_BLOCKS, dtype=torch.int32, device=device)


@dataclass(frozen=True, slots=True)
class Share:
    """How the line of units is shared out.

    Attributes:
        grid: blocks of threads.
        partials: float32 elements for sums of row blocks that several of them have parts of.
    """

    grid: int
    partials: int

    @classmethod
    def of(cls, rows: int, columns: int, tiling: RingTiling, processors: int) -> Share:
        """As few blocks of threads as leave all row blocks cut alike, where that is nearly all."""
        row_blocks, spans = -(-rows // tiling.rows), columns // SPAN
        places = processors * tiling.blocks
        most = min(places, row_blocks * spans)
        even = row_blocks * min(places // row_blocks, spans)
        partials = most * 2 * tiling.rows * tiling.tokens
        return cls(even if even >= _FULL * places else most, partials)


def multiply(
    planes: QuantPlanes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tiling: RingTiling | None = None,
) -> None:
    """out = x W^T (+ bias) (+ residual).

    Kernels of one device share their counters: no two run at the same time.

    Args:
        planes: W [N, K] that `refusal` accepts.
        x: bfloat16 [T, K], T at most `MOST_ROWS`; rows begin at multiples of 16 bytes.
        out: bfloat16 [T, N], rows at any distance; may be the residual.
        bias: bfloat16 [N].
        residual: like `out`.
        tiling: by default that of `WHOLE_TILINGS`.

    Raises:
        ValueError: the tiling has no room on this device.
        RuntimeError: the device does not take the kernel.
    """
    if tiling is None:
        tiling = next(each for most, each in WHOLE_TILINGS.items() if len(x) <= most)
    limits = kernel_limits(x.device)
    kernel = _compiled(planes.format, tiling, Ring.of(planes.format, tiling, limits))
    share = Share.of(planes.rows, planes.columns, tiling, limits.processors)
    partials = torch.empty(share.partials, dtype=torch.float32, device=x.device)
    kernel(
        (share.grid, 1, 1),
        (tiling.threads, 1, 1),
        [
            *tensor_operands(planes, x, out, bias, residual),
            partials,
            arrivals(x.device),
            *number_operands(planes, x, out, bias, residual, SPAN),
        ],
    )
