"""`rows_in.cu`: products of dozens of rows with matrices of few columns, and a gate behind them.

Such a matrix is read in two or three microseconds; what counts is that all processors read it at
once, and before the kernel ahead is done. `docs/lab/gpu.md` has the figures.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.tensor_map import tensor_map

_FILES = ("hopper.cuh", "swizzled_products.cuh", "rows_in.cu")
_STEP = 64
"""Columns."""
_GROUP_ROWS = 64
"""Of x, that four warps multiply."""
_MOST_SHARED = 227 << 10
"""Bytes, of a block of threads on a Hopper."""
_ALIGNMENT = 1024
_BARRIER_BYTES = 16
"""Of a stage."""
_FACTORS = 4 * 128
"""Bytes."""
_CHAINS = 1
"""Of products that follow one another."""
_EIGHT = 8
"""Results are written so many at a time."""
LEAST_ROWS, MOST_ROWS = 5, 64
"""Of x."""
_MOST_COLUMNS = 1024
_PROCESSORS = 132
"""Of a Hopper: so many blocks of threads are all at work at once."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a block of threads has of a product.

    Attributes:
        rows: of x.
        results: rows of the matrix; half of them gate and half up, if it is those.
    """

    rows: int
    results: int

    @property
    def stage_bytes(self) -> int:
        """Of 64 columns of x and the matrix."""
        return 2 * _STEP * (self.rows + self.results)

    def stages(self, columns: int) -> int:
        """So many of them have room in shared memory."""
        room = (_MOST_SHARED - _ALIGNMENT - _FACTORS) // (self.stage_bytes + _BARRIER_BYTES)
        return min(room, columns // _STEP)

    def shared_bytes(self, columns: int) -> int:
        """Of all."""
        return self.stages(columns) * (self.stage_bytes + _BARRIER_BYTES) + _ALIGNMENT + _FACTORS

    def threads(self, *, normed: bool) -> int:
        """Four warps for each 64 rows of x, as many for their squares, and one that copies."""
        return 128 * -(-self.rows // _GROUP_ROWS) * (1 + normed) + 32


CUTS: dict[int, Cut] = {16: Cut(16, 32), 32: Cut(32, 32), 64: Cut(64, 32)}
GATED_CUTS: dict[int, Cut] = {16: Cut(16, 48), 32: Cut(32, 48), 64: Cut(64, 48)}
"""For up to so many rows of x. A row's result has the same bits by all of them."""


def refusal(weight: torch.Tensor, *, gated: bool) -> str | None:
    """Why a matrix is not multiplied so, or None.

    Args:
        weight: [N, K].
        gated: it is gate | up.
    """
    size, columns = weight.shape
    if weight.dtype != torch.bfloat16 or weight.data_ptr() % 16 or not weight.is_contiguous():
        return "made for contiguous bfloat16"
    if columns % _STEP or columns > _MOST_COLUMNS:
        return f"made for up to {_MOST_COLUMNS} columns, in multiples of {_STEP}"
    most = _PROCESSORS * (GATED_CUTS if gated else CUTS)[MOST_ROWS].results
    multiple = _EIGHT * (1 + gated)
    if size % multiple or size > most:
        return f"made for up to {most} results, in multiples of {multiple}"
    return None


@functools.cache
def _compiled(cut: Cut, columns: int, *, gated: bool, normed: bool) -> DeviceKernel:
    defined = {
        "ROWS": cut.rows,
        "COLS": cut.results,
        "STEPS": columns // _STEP,
        "STAGES": cut.stages(columns),
        "CHAINS": _CHAINS,
        "GATED": int(gated),
        "NORMED": int(normed),
    }
    launch = KernelLaunch(cut.shared_bytes(columns), is_early=True, is_specific=True)
    return compiled_kernel("rows_in", _FILES, defined, launch)


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    gated: bool,
    eps: float | None = None,
    cut: Cut | None = None,
) -> torch.Tensor:
    """f x W^T, or silu(gate) * up of it where W is gate | up.

    Args:
        x: bfloat16 [T, K], contiguous.
        weight: bfloat16 [N, K] that `refusal` accepts.
        gated: W is gate | up.
        eps: f is rsqrt(mean(x^2) + eps) of the row; without it f is 1.
        cut: by default that of `CUTS` or `GATED_CUTS`.

    Returns:
        [T, N], or [T, N / 2] gated, rounded where the separate operations round.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    tokens, columns = x.shape
    cuts = GATED_CUTS if gated else CUTS
    cut = cut or next(each for most, each in cuts.items() if tokens <= most)
    results, own = weight.shape[0] // (1 + gated), cut.results // (1 + gated)
    out = torch.empty(tokens, results, dtype=x.dtype, device=x.device)
    normed = eps is not None
    _compiled(cut, columns, gated=gated, normed=normed)(
        (-(-results // own), -(-tokens // cut.rows), 1),
        (cut.threads(normed=normed), 1, 1),
        [
            tensor_map(x, (cut.rows, _STEP)),
            tensor_map(weight, (own, _STEP)),
            out,
            tokens,
            results,
            *struct.unpack("i", struct.pack("f", eps or 0.0)),
        ],
    )
    return out
