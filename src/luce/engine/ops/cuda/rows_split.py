"""`rows_split.cu`: products of dozens of rows with small matrices, to which a residual is added.

Such a matrix is read in a microsecond; what counts is that all processors read it at once, and
before the kernel ahead is done. `docs/lab/gpu.md` has the figures.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.tensor_map import tensor_map

_FILES = ("hopper.cuh", "swizzled_products.cuh", "rows_split.cu")
_PARTS = 8
"""Of the columns, whose sums are added up."""
_CHUNK = 64
"""Columns."""
_MOST_TOKENS = 64
"""Rows of x, of a block of threads."""
_THREADS = 160
_PROCESSOR_BYTES = 228 << 10
"""Of shared memory, on a Hopper; each block of threads takes 1 KiB away."""
_ALIGNMENT, _BARRIER_BYTES = 1024, 8
LEAST_ROWS, MOST_ROWS = 5, 256
"""Of x."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a block of threads has of a product.

    Attributes:
        rows: of the matrix.
        tokens: rows of x: 16, 32, 48 or 64.
        ranks: blocks of a cluster, that share the columns.
        beside: blocks of a processor.
    """

    rows: int
    tokens: int
    ranks: int
    beside: int = 1

    def stages(self, columns: int) -> int:
        """Chunks that have room in shared memory."""
        most = _PROCESSOR_BYTES // self.beside - 1024
        room = (most - self._fixed_bytes) // self._stage_bytes
        return min(columns // (_CHUNK * self.ranks), room)

    def shared_bytes(self, columns: int) -> int:
        """Of all."""
        return self._fixed_bytes + self.stages(columns) * self._stage_bytes

    @property
    def _stage_bytes(self) -> int:
        """Of the matrix, x and barriers."""
        return 2 * _CHUNK * (self.rows + self.tokens) + 2 * _BARRIER_BYTES

    @property
    def _fixed_bytes(self) -> int:
        """Of the sums that it adds up, what products read behind x, and what aligns all."""
        sums = 4 * self.tokens * (self.rows + 8)
        behind = max(sums, 2 * _CHUNK * (_MOST_TOKENS - self.tokens))
        return behind + _BARRIER_BYTES + _ALIGNMENT


CUTS: dict[int, Cut] = {
    16: Cut(64, 16, 8),
    32: Cut(64, 32, 8),
    64: Cut(32, 64, 4, 2),
    96: Cut(64, 32, 4, 2),
    128: Cut(32, 64, 2, 2),
    256: Cut(64, 64, 2),
}
"""For up to so many rows of x. A row's result has the same bits by all of them."""


def refusal(weight: torch.Tensor) -> str | None:
    """Why a matrix is not multiplied so, or None.

    Args:
        weight: [N, K], contiguous.
    """
    rows, columns = weight.shape
    if weight.dtype != torch.bfloat16 or weight.data_ptr() % 16 or not weight.is_contiguous():
        return "made for contiguous bfloat16"
    most = max(cut.rows for cut in CUTS.values())
    if rows % most or columns % (_CHUNK * _PARTS):
        return f"made for multiples of {most} rows and {_CHUNK * _PARTS} columns"
    return None


@functools.cache
def _compiled(cut: Cut, columns: int, _device: torch.device) -> DeviceKernel:
    """It is loaded on one device."""
    constants = {
        "ROWS": cut.rows,
        "TOKENS": cut.tokens,
        "RANKS": cut.ranks,
        "EIGHTH": columns // (_CHUNK * _PARTS),
        "STAGES": cut.stages(columns),
    }
    launch = KernelLaunch(cut.shared_bytes(columns), is_early=True, is_specific=True)
    return compiled_kernel("rows_split", _FILES, constants, launch)


def add_product(
    residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, cut: Cut | None = None
) -> None:
    """residual += x W^T, rounded once.

    Args:
        residual: bfloat16 [T, N], contiguous.
        x: bfloat16 [T, K], contiguous.
        weight: bfloat16 [N, K] that `refusal` accepts.
        cut: by default that of `CUTS`.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    size, columns = weight.shape
    cut = cut or next(each for most, each in CUTS.items() if len(x) <= most)
    _compiled(cut, columns, x.device)(
        (size // cut.rows * cut.ranks, -(-len(x) // cut.tokens), 1),
        (_THREADS, 1, 1),
        [
            tensor_map(weight, (cut.rows, _CHUNK)), tensor_map(x, (cut.tokens, _CHUNK)),
            residual, residual, len(x), size,
        ],
    )  # fmt: skip
