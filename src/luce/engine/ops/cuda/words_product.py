"""`words_product.cu`: products of up to four rows that are words of 16-bit integers already."""

from __future__ import annotations

import functools
import struct

import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import GROUP

PRIMITIVES = ("hopper.cuh", "moe_words_primitives.cuh")
MOST_TOKENS = 4
_TYPE = "Q4_K"
_STEP = 1024
"""Columns of a row that a warp reads at a time: a group for each lane."""
_WARPS = 4
_ROWS = ((8192, 8), (4096, 4), (0, 2))
"""Of a warp, for matrices of so many: fewer of smaller ones, so that there are enough warps."""
_PLAIN_WORDS = 19


def refusal(planes: QuantPlanes) -> str | None:
    """Why the kernel is not made for a matrix, or None."""
    if planes.format.name != _TYPE:
        return f"made for {_TYPE}"
    if planes.columns % _STEP or planes.rows % _rows_of(planes):
        return "made for other numbers of rows or columns"
    return None


def multiply(
    planes: QuantPlanes,
    words: torch.Tensor,
    squares: tuple[torch.Tensor, float] | None,
    y: torch.Tensor,
    *,
    adds: bool,
) -> None:
    """y = x W^T, or that added to y.

    Args:
        planes: W [N, K], which is not refused.
        words: int32 [T, W, K / 32]: of `norm_quantise`, or of its `PartWords`.
        squares: of those words, f32 [T, heads, parts], and what is added to their mean.
        y: bfloat16 [T, N or more].
        adds: to y.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    tokens, each, groups = words.shape
    heads = 1 if squares is None else squares[0].shape[1]
    parts = 1 if each == _PLAIN_WORDS else (each - 16) // 2
    rows = _rows_of(planes)
    sums, eps = (words, 0.0) if squares is None else squares
    (eps_bits,) = struct.unpack("i", struct.pack("f", eps))
    facts = planes.columns, rows, parts, groups // heads, tokens, int(adds)
    assert planes.blocks is not None
    _compiled(facts)(
        (-(-planes.rows // (rows * _WARPS)), 1, 1),
        (32 * _WARPS, 1, 1),
        [
            words, sums, y, planes.codes, planes.scales, planes.blocks, planes.rows, y.stride(0),
            eps_bits,
        ],
    )  # fmt: skip


def _rows_of(planes: QuantPlanes) -> int:
    """That a warp has."""
    return next(count for least, count in _ROWS if planes.rows >= least)


@functools.cache
def _compiled(facts: tuple[int, ...]) -> DeviceKernel:
    names = ("COLUMNS", "ROWS", "PARTS", "HEAD_GROUPS", "TOKENS", "ADDS")
    constants = {**dict(zip(names, facts, strict=True)), "WARPS": _WARPS}
    assert facts[0] % GROUP == 0
    files = (*PRIMITIVES, "words_parts.cuh", "words_product.cu")
    return compiled_kernel("words_product", files, constants, KernelLaunch(is_early=True))
