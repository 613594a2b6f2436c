"""`quant_whole.cu` for a format and a tiling: products of dozens of rows with quantised matrices.

The same line of units and ring as `quant_stream`, but codes become whole bfloat16 weights, rounded
once from float32. `docs/lab/quant.md` has the figures.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from luce.engine.device import kernel_limits
from luce.engine.device_kernel import DeviceKernel, KernelLaunch, KernelLimits
from luce.engine.ops.cuda import quant_stream
from luce.engine.ops.cuda.quant_stream import (
    SPAN,
    Ring,
    StreamLaunch,
    StreamTiling,
    Tilings,
    arrivals,
    stage_bytes,
)
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import QuantFormat

_FILES = (
    "quant_stages.cuh",
    "quant_codes.cuh",
    "quant_places.cuh",
    "quant_shares.cuh",
    "quant_arrange.cuh",
    "quant_weights.cuh",
    "quant_whole.cu",
)
_NAME = "quant_whole"
_FLAG_BYTES = 16
_LEAST_STAGES = 3
_FULL = 0.9
"""Of a processor's places: so many taken are enough where no row block is cut unevenly then."""

WHOLE_TILINGS: Tilings = {
    32: StreamTiling(12, 1, 4, stages=4, is_early=True, is_together=True),
    64: StreamTiling(12, 1, 8, stages=4, is_early=True, is_together=True),
}
MOST_ROWS = max(WHOLE_TILINGS)
"""Of x."""


def ring_of(form: QuantFormat, tiling: StreamTiling, limits: KernelLimits) -> Ring:
    """The deepest ring of shared memory that fits.

    Raises:
        ValueError: too few stages fit.
    """
    stage = stage_bytes(form, tiling)
    rest = _FLAG_BYTES + 2 * tiling.tokens * 2 * SPAN
    stages = min(tiling.stages, (limits.shared_bytes_of(tiling.blocks) - rest) // stage)
    if stages < _LEAST_STAGES:
        raise ValueError(f"{tiling} leaves no room for enough stages of {form.name}")
    return Ring(stages, stages * stage + rest)


def constants(form: QuantFormat, tiling: StreamTiling, stages: int) -> dict[str, int]:
    """What the kernel's text wants defined."""
    return {
        **quant_stream.constants(form, tiling, stages),
        "HAS_OFFSET": 0,
        "WITH_OFFSET": int(form.has_offset),
        "WHOLE": 1,
    }


def refusal(planes: QuantPlanes) -> str | None:
    """Why these planes cannot be multiplied so, or None."""
    return quant_stream.refusal(planes)


@functools.cache
def _compiled(form: QuantFormat, tiling: StreamTiling, ring: Ring) -> DeviceKernel:
    launch = KernelLaunch(ring.nbytes, tiling.is_early, is_specific=True)
    return compiled_kernel(_NAME, _FILES, constants(form, tiling, ring.stages), launch)


def _launch(
    planes: QuantPlanes, x: torch.Tensor, out: torch.Tensor, tiling: StreamTiling, processors: int
) -> StreamLaunch:
    """As few blocks of threads as leave all row blocks cut alike, where that is nearly all."""
    launch = StreamLaunch.of(planes, x, out, tiling, processors)
    row_blocks, places = -(-planes.rows // tiling.rows), processors * tiling.blocks
    even = row_blocks * min(places // row_blocks, planes.columns // SPAN)
    return replace(launch, grid=even) if even >= _FULL * places else launch


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
        tiling: with `is_together`; by default that of `WHOLE_TILINGS`.

    Raises:
        ValueError: the tiling has no room on this device.
        RuntimeError: the device does not take the kernel.
    """
    if tiling is None:
        tiling = next(each for most, each in WHOLE_TILINGS.items() if len(x) <= most)
    limits = kernel_limits(x.device)
    kernel = _compiled(planes.format, tiling, ring_of(planes.format, tiling, limits))
    launch = _launch(planes, x, out, tiling, limits.processors)
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
