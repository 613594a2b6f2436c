"""Which products of dozens of rows with plain matrices are those of CUDA C++, on Hopper.

What is chosen was measured (docs/lab/gpu.md); the rest is the vendor's. A kernel is tried on a
small product first, once for a number of columns: where it cannot be built, or gives something else
than float64, that is logged and the vendor goes on.
"""

from __future__ import annotations

import functools
import logging

import torch

from luce.engine.device import kernel_refusal
from luce.engine.ops.cuda import rows_in, rows_in_trial, rows_split
from luce.engine.ops.triton.probe import TrialError, launch_refusal

_log = logging.getLogger(__name__)

_TRIAL_ERROR = 3e-3
"""Of the norm; results alone, being bfloat16, make 1.7e-3."""
_TRIAL_RESULTS = 256
_MOST_RESULTS = 1024
"""With more the vendor's kernels have as many processors read as there are."""


class RowsProducts:
    """`ops.triton.linear.RowsProducts`."""

    def adds(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether `add` is for such matrices, and serves here."""
        if not rows_split.LEAST_ROWS <= len(x) <= rows_split.MOST_ROWS:
            return False
        if len(weight) > _MOST_RESULTS or rows_split.refusal(weight) is not None:
            return False
        if not all(each.is_contiguous() and each.data_ptr() % 16 == 0 for each in (residual, x)):
            return False
        return _adds(weight.shape[1], weight.device)

    def add(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        """residual += x W^T, rounded once."""
        rows_split.add_product(residual, x, weight)

    def gates(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether `gate` is for such matrices, and serves here."""
        if not rows_in.LEAST_ROWS <= len(x) <= rows_in.MOST_ROWS:
            return False
        if rows_in.refusal(weight) is not None or not x.is_contiguous() or x.data_ptr() % 16:
            return False
        return serves(x.device) and rows_in_trial.serves(weight.shape[1], weight.device)

    def gate(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of x W^T."""
        return rows_in.gate(x, weight)


@functools.cache
def serves(_device: torch.device) -> bool:
    """Whether the current device, which this is, is one that such kernels are for."""
    reason = kernel_refusal(is_hopper=True)
    if reason is not None:
        _log.info("products of dozens of rows are the vendor's: %s", reason)
    return reason is None


def _adds(columns: int, device: torch.device) -> bool:
    facts = "rows_split", columns, device
    return serves(device) and launch_refusal(facts, lambda: _try_adding(columns, device)) is None


def _try_adding(columns: int, device: torch.device) -> None:
    """By each cut, in other rows' company.

    Raises:
        TrialError: results differ from float64, or from cut to cut.
    """
    most = rows_split.MOST_ROWS
    generator = torch.Generator().manual_seed(columns)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.bfloat16)

    residual, x = noise(most, _TRIAL_RESULTS), noise(most, columns)
    weight = noise(_TRIAL_RESULTS, columns)
    expected = residual.double() + x.double() @ weight.double().T
    first = None
    for rows in rows_split.CUTS:
        found = residual[: rows - 3].clone()
        rows_split.add_product(found, x[: rows - 3], weight)
        apart = float((found - expected[: rows - 3]).norm() / expected[: rows - 3].norm())
        if not apart < _TRIAL_ERROR:
            raise TrialError(f"products of {rows - 3} rows are {apart:.1e} off")
        first = found if first is None else first
        if not torch.equal(first, found[: len(first)]):
            raise TrialError(f"a row has other bits among {rows - 3}")
