"""`rows_in.cu`: gate and up of dozens of rows and few columns, and the gate behind them.

Such a matrix is read in two or three microseconds; what counts is that all processors read it at
once, and before the kernel ahead is done. `docs/lab/gpu.md` has the figures.
"""

from __future__ import annotations

import functools
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
_EIGHT = 8
"""Results are written so many at a time."""
_MOST_COLUMNS = 1024
_MOST_RESULTS = 6144
"""With more, as with more columns, the vendor has not been measured to be slower."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a block of threads has of a product.

    Attributes:
        rows: of x.
        results: rows of the matrix; half of them gate and half up.
    """

    rows: int
    results: int

    @property
    def stage_bytes(self) -> int:
        """Of 64 columns of x and the matrix."""
        return 2 * _STEP * (self.rows + self.results)

    def stages(self, columns: int) -> int:
        """So many of them have room in shared memory."""
        room = (_MOST_SHARED - _ALIGNMENT) // (self.stage_bytes + _BARRIER_BYTES)
        return min(room, columns // _STEP)

    def shared_bytes(self, columns: int) -> int:
        """Of all."""
        return self.stages(columns) * (self.stage_bytes + _BARRIER_BYTES) + _ALIGNMENT

    @property
    def threads(self) -> int:
        """Four warps for each 64 rows of x, and one that copies."""
        return 128 * -(-self.rows // _GROUP_ROWS) + 32


CUTS: dict[int, Cut] = {
    16: Cut(16, 48),
    64: Cut(64, 96),
    128: Cut(128, 96),
    192: Cut(192, 48),
    256: Cut(128, 96),
}
"""For up to so many rows of x. A row's result has the same bits by all of them."""
LEAST_ROWS, MOST_ROWS = 5, max(CUTS)
"""Of x."""


def refusal(weight: torch.Tensor) -> str | None:
    """Why a matrix is not multiplied so, or None.

    Args:
        weight: [N, K].
    """
    size, columns = weight.shape
    if weight.dtype != torch.bfloat16 or weight.data_ptr() % 16 or not weight.is_contiguous():
        return "made for contiguous bfloat16"
    if columns % _STEP or columns > _MOST_COLUMNS:
        return f"made for up to {_MOST_COLUMNS} columns, in multiples of {_STEP}"
    if size % (2 * _EIGHT) or size > _MOST_RESULTS:
        return f"made for up to {_MOST_RESULTS} rows, in multiples of {2 * _EIGHT}"
    return None


@functools.cache
def _compiled(cut: Cut, columns: int, _device: torch.device) -> DeviceKernel:
    """It is loaded on one device."""
    defined = {
        "ROWS": cut.rows,
        "COLS": cut.results,
        "STEPS": columns // _STEP,
        "STAGES": cut.stages(columns),
    }
    launch = KernelLaunch(cut.shared_bytes(columns), is_early=True, is_specific=True)
    return compiled_kernel("rows_in", _FILES, defined, launch)


def gate(x: torch.Tensor, weight: torch.Tensor, cut: Cut | None = None) -> torch.Tensor:
    """silu(gate) * up of x W^T.

    Args:
        x: bfloat16 [T, K], contiguous.
        weight: bfloat16 [N, K] that `refusal` accepts, gate | up.
        cut: by default that of `CUTS`.

    Returns:
        [T, N / 2], rounded where the separate operations round.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    tokens, columns = x.shape
    cut = cut or next(each for most, each in CUTS.items() if tokens <= most)
    results, own = weight.shape[0] // 2, cut.results // 2
    out = torch.empty(tokens, results, dtype=x.dtype, device=x.device)
    _compiled(cut, columns, x.device)(
        (-(-results // own), -(-tokens // cut.rows), 1),
        (cut.threads, 1, 1),
        [
            tensor_map(x, (cut.rows, _STEP)),
            tensor_map(weight, (own, _STEP)),
            out,
            tokens,
            results,
        ],
    )
    return out
