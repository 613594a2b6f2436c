"""`words_product.cu`: a few rows that are words times a matrix of Q4_K, added to a residual."""

from __future__ import annotations

import functools
import struct

import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.triton.norm_quantise import PartWords
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import GROUP, QUANT_FORMATS

PRIMITIVES = ("words_product_primitives.cuh",)
_ROWS, _SETS = 8, 2
"""Of the matrix: a thread's, and sets of them in a block of threads."""
_WARP = 32
_MOST_THREADS = 512
_PARTS = 20
"""Words of a group of two parts."""

Words = PartWords | torch.Tensor
"""Of states, or int32 [T, 19, K / 32] of `norm_quantise`."""


def refusal(planes: QuantPlanes, out: torch.Tensor, x: Words) -> str | None:
    """Why the kernel is not made for such a product, or None."""
    groups = planes.columns // GROUP
    if planes.format != QUANT_FORMATS["Q4_K"]:
        return "made for Q4_K"
    if isinstance(x, PartWords) and (x.words.shape[1] != _PARTS or head_groups(x) % 2):
        return "made for parts of half a group, and heads of pairs of groups"
    if out.dtype != torch.bfloat16 or out.stride(1) != 1:
        return "made for bfloat16"
    if groups % _WARP or groups * _SETS > _MOST_THREADS or planes.rows % (_ROWS * _SETS):
        return "made for whole warps of groups and whole blocks of rows"
    return None


def blocks(planes: QuantPlanes) -> int:
    """Blocks of threads that the product takes."""
    return planes.rows // (_ROWS * _SETS)


def head_groups(x: Words) -> int:
    """Groups of a head that is to be divided by its root mean square; 0: there are none."""
    return x.words.shape[2] // x.squares.shape[1] if isinstance(x, PartWords) else 0


def add(planes: QuantPlanes, x: Words, out: torch.Tensor) -> None:
    """out += x W^T, for as many rows as `x` has.

    Args:
        planes: which are not refused.
        x: in the plain order.
        out: [T, N].

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    assert planes.blocks is not None
    groups = planes.columns // GROUP
    words, squares, eps = (x.words, x.squares, x.eps) if isinstance(x, PartWords) else (x, x, 0.0)
    (eps_bits,) = struct.unpack("i", struct.pack("f", eps))
    _compiled(groups, head_groups(x), out.device)(
        (blocks(planes), 1, 1),
        (groups * _SETS, 1, 1),
        [
            words, squares, out, planes.codes, planes.scales, planes.blocks, eps_bits,
            len(out), out.stride(0),
        ],
    )  # fmt: skip


@functools.cache
def _compiled(groups: int, head_groups: int, _device: torch.device) -> DeviceKernel:
    """It is loaded on one device."""
    constants = {"GROUPS": groups, "HEAD_GROUPS": head_groups, "ROWS": _ROWS, "SETS": _SETS}
    launch = KernelLaunch(4 * _SETS * (groups // _WARP) * _ROWS, is_early=True)
    return compiled_kernel("words_product", (*PRIMITIVES, "words_product.cu"), constants, launch)
