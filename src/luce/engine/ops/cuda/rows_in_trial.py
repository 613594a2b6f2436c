"""Whether `rows_in.cu` serves on a device, found out by products that float64 gives too."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from luce.engine.ops.cuda import rows_in
from luce.engine.ops.triton.probe import TrialError, launch_refusal

_MOST_APART = 5e-3
"""Of the norm; rounding to bfloat16 four times makes 3.9e-3."""
_RESULTS = 200
"""Not all of a block's."""


def serves(columns: int, device: torch.device) -> bool:
    """Whether it does for matrices of so many; tried once, and a failure is logged."""
    return launch_refusal(("rows_in", columns, device), lambda: _try(columns, device)) is None


def _try(columns: int, device: torch.device) -> None:
    """By each cut, in other rows' company.

    Raises:
        TrialError: results differ from float64, or from cut to cut.
    """
    generator = torch.Generator().manual_seed(columns)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.bfloat16)

    x, weight = noise(rows_in.MOST_ROWS, columns), noise(2 * _RESULTS, columns) * columns**-0.5
    expected = by_definition(x, weight)
    first: torch.Tensor | None = None
    for most in rows_in.CUTS:
        found, wanted = rows_in.gate(x[: most - 3], weight), expected[: most - 3]
        apart = float((found - wanted).norm() / wanted.norm())
        if not apart < _MOST_APART:
            raise TrialError(f"gates of {most - 3} rows are {apart:.1e} off")
        first = found if first is None else first
        if not torch.equal(first, found[: len(first)]):
            raise TrialError(f"a row has other bits among {most - 3}")


def by_definition(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What `rows_in.gate` rounds, in float64."""
    gate, up = (x.double() @ weight.double().T).chunk(2, 1)
    return F.silu(gate) * up
