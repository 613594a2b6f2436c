"""Which kernel of CUDA C++ multiplies by quantised planes, by the number of rows of x.

What is chosen was measured (docs/lab/quant.md). The streaming kernel is tried on a small product
first, once for a format: where it cannot be built, or gives something else than the reference,
that is logged and Triton's kernels go on.
"""

from __future__ import annotations

import functools
import logging
from enum import Enum

import torch

from luce.engine.ops.cuda import quant_mma, quant_stream
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.quant_planes import QuantPlanes, empty_planes
from luce.loaders.quant_formats import QuantFormat, ScaleKind

_log = logging.getLogger(__name__)

_TRIAL_ROWS, _TRIAL_COLUMNS = 300, 1024
_TRIAL_ERROR = 3e-3
"""Of the norm; results alone, being bfloat16, make 1.7e-3."""


class Kernel(Enum):
    """Who multiplies."""

    TRITON = "triton"
    MMA = "mma"
    STREAM = "stream"


CHOICE: dict[int, Kernel] = {
    4: Kernel.TRITON,
    8: Kernel.MMA,
}
"""For up to so many rows of x; Triton beyond."""


def _random_like(plane: torch.Tensor, has_halves: bool, generator: torch.Generator) -> torch.Tensor:
    """A plane of the same shape and type with random bits, or random scales of moderate size."""
    if not has_halves:
        size = (len(plane), plane.shape[1] * plane.element_size())
        random = torch.randint(256, size, generator=generator, dtype=torch.uint8)
    else:
        size = (len(plane), plane.shape[1] * plane.element_size() // 2)
        random = torch.rand(size, generator=generator).add(0.5).half().view(torch.uint8)
    return random.view(plane.dtype).to(plane.device)


def _trial_planes(form: QuantFormat, device: torch.device) -> QuantPlanes:
    generator = torch.Generator().manual_seed(5)
    planes = empty_planes(form.name, _TRIAL_ROWS, _TRIAL_COLUMNS, device)
    planes.codes.copy_(_random_like(planes.codes, False, generator))
    if planes.high is not None:
        planes.high.copy_(_random_like(planes.high, False, generator))
    has_halves = form.scale in (ScaleKind.HALF, ScaleKind.HALF_OFFSET)
    planes.scales.copy_(_random_like(planes.scales, has_halves, generator))
    if form.scale is ScaleKind.POWER:
        # All powers would overflow the sums.
        planes.scales.fill_(127)
    if planes.blocks is not None:
        planes.blocks.copy_(_random_like(planes.blocks, True, generator))
    return planes


def _difference(planes: QuantPlanes, tokens: int, tiling: quant_stream.StreamTiling) -> str | None:
    """What is wrong with a product of so many rows, or None."""
    generator = torch.Generator().manual_seed(tokens)
    device = planes.codes.device
    x = torch.randn(tokens, planes.columns, generator=generator).to(device, torch.bfloat16)
    found = [x.new_full((tokens, planes.rows), float("nan")) for _ in range(2)]
    for out in found:
        quant_stream.multiply(planes, x, out, None, None, tiling)
    expected = x.float() @ decode(planes).T
    error = ((found[0].float() - expected).norm() / expected.norm()).item()
    if not error < _TRIAL_ERROR:
        return f"{tokens} rows differ by {error:.1e} of the norm"
    return None if torch.equal(*found) else f"{tokens} rows differ from time to time"


def stream_fault(form: QuantFormat, device: torch.device) -> str | None:
    """Why the streaming kernel is not to be trusted with a format on a device, or None."""
    planes = _trial_planes(form, device)
    reason = quant_stream.refusal(planes)
    if reason is not None:
        return reason
    try:
        for tilings in quant_stream.STREAM_TILINGS.values():
            for most, tiling in tilings.items():
                fault = _difference(planes, most - 3, tiling)
                if fault is not None:
                    return fault
        return None
    except (RuntimeError, AttributeError, ValueError) as error:
        return str(error)


@functools.cache
def _serves(form: QuantFormat, device: torch.device) -> bool:
    reason = stream_fault(form, device)
    if reason is not None:
        _log.warning("streaming products with %s are not used: %s", form.name, reason)
    return reason is None


class QuantProducts:
    """`ops.triton.quant_linear.MmaProduct` by the kernel that was chosen.

    Args:
        choice: like `CHOICE`.
    """

    def __init__(self, choice: dict[int, Kernel] | None = None) -> None:
        self._choice = CHOICE if choice is None else choice

    def takes(self, planes: QuantPlanes, x: torch.Tensor) -> bool:
        """Whether one was chosen for so many rows, and knows the codes."""
        kernel = self._kernel(len(x))
        if kernel is Kernel.MMA:
            return quant_mma.refusal(planes) is None
        if kernel is Kernel.TRITON or quant_stream.refusal(planes) is not None:
            return False
        is_aligned = x.data_ptr() % 16 == 0 and x.stride(0) % 8 == 0
        return is_aligned and _serves(planes.format, x.device)

    def multiply(
        self,
        planes: QuantPlanes,
        x: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
    ) -> None:
        """out = x W^T (+ bias) (+ residual)."""
        kernel = quant_mma if self._kernel(len(x)) is Kernel.MMA else quant_stream
        kernel.multiply(planes, x, out, bias, residual)

    def _kernel(self, tokens: int) -> Kernel:
        return next(
            (kernel for most, kernel in self._choice.items() if tokens <= most), Kernel.TRITON
        )
