"""Which kernel of CUDA C++ multiplies by quantised planes, by the number of rows of x.

What is chosen was measured (docs/lab/quant.md). A kernel is tried on small products first, once for
a format and size of clusters: where it cannot be built, or gives something else than the reference,
that is logged and Triton's kernels go on.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial

import torch

from luce.engine.device import kernel_refusal
from luce.engine.ops.cuda import quant_held, quant_split, quant_whole
from luce.engine.ops.cuda.quant_stage import Rows
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.random_planes import random_planes
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import BLOCK, QuantFormat

_log = logging.getLogger(__name__)

_TRIAL_ERROR = 3e-3
"""Of the norm; results alone, being bfloat16, make 1.7e-3."""


class Kernel(Enum):
    """Who multiplies."""

    TRITON = "triton"
    HELD = "held"
    """`SPLIT` for planes that it refuses, or is no faster with."""
    SPLIT = "split"
    WHOLE = "whole"


_MODULES = {
    Kernel.HELD: quant_held,
    Kernel.SPLIT: quant_split,
    Kernel.WHOLE: quant_whole,
}
_TRIAL_ROWS = 300
_TRIAL_COLUMNS = 1024
_TRIAL_UNITS = 7
"""Of 256 columns, of a block of threads: so many, and eight row pairs, have room on every GPU."""

CHOICE: dict[int, Kernel] = {
    4: Kernel.TRITON,
    16: Kernel.HELD,
    64: Kernel.WHOLE,
}
"""For up to so many rows of x; Triton beyond."""


Product = Callable[[QuantPlanes, torch.Tensor, torch.Tensor], None]
"""out = x W^T, of planes, x and out."""


def _difference(planes: QuantPlanes, tokens: int, multiply: Product) -> str | None:
    """What is wrong with a product of so many rows, or None."""
    generator = torch.Generator().manual_seed(tokens)
    device = planes.codes.device
    x = torch.randn(tokens, planes.columns, generator=generator).to(device, torch.bfloat16)
    found = [x.new_full((tokens, planes.rows), float("nan")) for _ in range(2)]
    for out in found:
        multiply(planes, x, out)
    expected = x.float() @ decode(planes).T
    error = ((found[0].float() - expected).norm() / expected.norm()).item()
    if not error < _TRIAL_ERROR:
        return f"{tokens} rows differ by {error:.1e} of the norm"
    return None if torch.equal(*found) else f"{tokens} rows differ from time to time"


def _trial_rows(kernel: Kernel) -> list[int]:
    """Numbers of rows that take each of its tilings once."""
    is_whole = kernel is Kernel.WHOLE
    most_rows = list(quant_whole.WHOLE_TILINGS if is_whole else quant_split.SPLIT_TILINGS)
    return [most - 3 for most in most_rows]


def _trials(kernel: Kernel, blocks: int) -> tuple[int, list[Product]]:
    """Columns, and products that take each way through the kernel once."""
    if kernel is Kernel.WHOLE:
        return _TRIAL_COLUMNS, [partial(quant_whole.multiply, bias=None, residual=None)]
    # One block has a unit more than the others, if there are others.
    columns = ((_TRIAL_UNITS - 1) * blocks + 1) * BLOCK
    pairs = -(-_TRIAL_ROWS // quant_split.PAIR_ROWS)
    cuts = (
        # A round of eight pairs and another of two; a pair each, which leaves warps without work.
        quant_split.Cut(1, blocks, pairs, _TRIAL_UNITS, quant_split.LEAST_ROUND),
        quant_split.Cut(pairs, blocks, 1, _TRIAL_UNITS, 1),
    )
    return columns, [partial(quant_split.multiply_by, cut) for cut in cuts]


def kernel_fault(
    kernel: Kernel, form: QuantFormat, device: torch.device, blocks: int = 2
) -> str | None:
    """Why a kernel is not to be trusted with a format, which it accepts, on a device, or None.

    Args:
        kernel: not Triton's.
        form: of planes.
        device: a GPU.
        blocks: of a cluster of the splitting kernel, which is compiled for each number of them.
    """
    columns, products = _trials(kernel, blocks)
    try:
        planes = random_planes(form, _TRIAL_ROWS, columns, device)
        faults = (
            _difference(planes, tokens, multiply)
            for multiply in products
            for tokens in _trial_rows(kernel)
        )
        return next((fault for fault in faults if fault is not None), None)
    except (RuntimeError, AttributeError, ValueError) as error:
        return str(error)


def held_fault(
    form: QuantFormat, columns: int, cut: quant_held.Cut, device: torch.device
) -> str | None:
    """Why the holding kernel is not to be trusted with planes that it accepts, or None.

    It is tried as it is compiled for them, with few rows.

    Args:
        form: of the planes.
        columns: of them.
        cut: of them, whatever its number of blocks.
        device: a GPU.
    """
    few, rows = cut.for_trial()
    try:
        planes = random_planes(form, rows, columns, device)
        multiply = partial(quant_held.multiply_by, few)
        faults = (_difference(planes, tokens, multiply) for tokens in _trial_rows(Kernel.HELD))
        return next((fault for fault in faults if fault is not None), None)
    except (RuntimeError, AttributeError, ValueError) as error:
        return str(error)


@functools.cache
def _held_serves(
    form: QuantFormat, columns: int, cut: quant_held.Cut, device: torch.device
) -> bool:
    reason = kernel_refusal(is_hopper=True) or held_fault(form, columns, cut, device)
    if reason is not None:
        what = f"{form.name} of {columns} columns"
        _log.warning("held products with %s are not used: %s", what, reason)
    return reason is None


def _are_held(planes: QuantPlanes) -> bool:
    if not quant_held.pays(planes) or quant_held.refusal(planes) is not None:
        return False
    cut = replace(quant_held.cut_of(planes), blocks=1)
    return _held_serves(planes.format, planes.columns, cut, planes.codes.device)


@functools.cache
def _serves(kernel: Kernel, form: QuantFormat, device: torch.device, blocks: int) -> bool:
    if kernel is Kernel.WHOLE and (reason := kernel_refusal(is_hopper=True)) is not None:
        _log.info("%s products are not used: %s", kernel.value, reason)
        return False
    reason = kernel_fault(kernel, form, device, blocks)
    if reason is not None:
        which = f"{form.name} by {blocks} blocks" if kernel is Kernel.SPLIT else form.name
        _log.warning("%s products with %s are not used: %s", kernel.value, which, reason)
    return reason is None


class QuantProducts:
    """`ops.triton.quant_linear.MmaProduct` by the kernel that was chosen.

    Args:
        choice: like `CHOICE`.
    """

    def __init__(self, choice: dict[int, Kernel] | None = None) -> None:
        self._choice = CHOICE if choice is None else choice

    def takes(self, planes: QuantPlanes, x: torch.Tensor) -> bool:
        """Whether one was chosen for so many rows, knows the codes, and serves here."""
        kernel = self._kernel(planes, len(x))
        if kernel is Kernel.TRITON:
            return False
        is_aligned = x.data_ptr() % 16 == 0 and x.stride(0) % 8 == 0
        if not is_aligned or _MODULES[kernel].refusal(planes) is not None:
            return False
        if kernel is Kernel.HELD:
            return True
        blocks = quant_split.cut_of(planes).blocks if kernel is Kernel.SPLIT else 1
        return _serves(kernel, planes.format, x.device, blocks)

    def prepared(self, x: torch.Tensor, norm: NormWeight | None = None) -> Rows | None:
        """x as `multiply` takes it, once for all matrices that it meets.

        None where there is a norm that does not go with it.
        """
        if self._chosen(len(x)) in (Kernel.HELD, Kernel.SPLIT):
            return quant_split.prepared(x, norm)
        return x if norm is None else None

    def multiply(
        self,
        planes: QuantPlanes,
        x: Rows,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
    ) -> None:
        """out = x W^T (+ bias) (+ residual)."""
        _MODULES[self._kernel(planes, len(x))].multiply(planes, x, out, bias, residual)

    def _chosen(self, tokens: int) -> Kernel:
        return next(
            (kernel for most, kernel in self._choice.items() if tokens <= most), Kernel.TRITON
        )

    def _kernel(self, planes: QuantPlanes, tokens: int) -> Kernel:
        kernel = self._chosen(tokens)
        return Kernel.SPLIT if kernel is Kernel.HELD and not _are_held(planes) else kernel
