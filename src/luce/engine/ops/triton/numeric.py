"""What every kernel file needs: block sizes and how a tile product is computed."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from luce.engine.device import has_dependent_launch

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Kernels run in Triton's interpreter, on a CPU: for tests."""


OVERLAPS = tl.constexpr(not INTERPRETED.value and has_dependent_launch())
"""Kernels start while the one before them ends, and wait for its results where they need them."""

LAUNCH: dict[str, bool] = {"launch_pdl": True} if OVERLAPS.value else {}
"""Further arguments of every launch."""


@triton.jit
def wait_for_inputs(lets_next_begin: tl.constexpr = True):
    """Wait until all kernels before this one are done.

    Every kernel calls it, before it reads what another wrote and before it writes: so the end of
    one implies the end of all before it. Weights may be read earlier.
    """
    if OVERLAPS:
        if lets_next_begin:
            gdc_launch_dependents()
        gdc_wait()


@triton.jit
def let_next_begin(HAS_WRITTEN: tl.constexpr):
    """Let the next kernel begin after a wait that did not.

    HAS_WRITTEN: what was written before this, that kernel and those behind it may read before their
    own waits.
    """
    if OVERLAPS:
        if HAS_WRITTEN:
            tl.inline_asm_elementwise(
                "fence.acq_rel.gpu; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
            )
            tl.debug_barrier()
        gdc_launch_dependents()


@triton.jit
def dot(left, right, total):
    """total + left @ right in float32; exact products for float32 inputs, never tf32."""
    if INTERPRETED:
        # The interpreter multiplies bfloat16 as if it were an integer.
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    if left.dtype == tl.float32:
        return tl.dot(left, right, total, input_precision="ieee")
    return tl.dot(left, right, total)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow, for float32."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, small) / (1.0 + small)


def power_of_two(size: int, least: int = 1) -> int:
    """The smallest power of two that is not below `size` and `least`."""
    return max(least, 1 << (size - 1).bit_length())
