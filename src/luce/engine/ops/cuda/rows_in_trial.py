"""Whether `rows_in.cu` serves on a device, found out by products that float64 gives too."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from luce.engine.ops.cuda import rows_in
from luce.engine.ops.triton.probe import TrialError, launch_refusal

_MOST_APART = 5e-3
"""Of the norm; results alone, being bfloat16, make 1.7e-3, and behind a gate 3.9e-3."""
_RESULTS = 200
"""Not all of a block's."""
_EPS = 0.5


@dataclass(frozen=True, slots=True)
class Form:
    """What is compiled for it.

    Attributes:
        columns: of the matrix.
        gated: it is gate | up.
        normed: the product is normalised.
    """

    columns: int
    gated: bool
    normed: bool


def serves(form: Form, device: torch.device) -> bool:
    """Whether it does; tried once, and a failure is logged."""
    return launch_refusal(("rows_in", form, device), lambda: _try(form, device)) is None


def _try(form: Form, device: torch.device) -> None:
    """By each cut, in other rows' company.

    Raises:
        TrialError: results differ from float64, or from cut to cut.
    """
    generator = torch.Generator().manual_seed(form.columns)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.bfloat16)

    x = noise(rows_in.MOST_ROWS, form.columns)
    weight = noise(_RESULTS * (1 + form.gated), form.columns) * form.columns**-0.5
    eps = _EPS if form.normed else None
    expected = by_definition(x, weight, gated=form.gated, eps=eps)
    first: torch.Tensor | None = None
    for most in rows_in.GATED_CUTS if form.gated else rows_in.CUTS:
        found = rows_in.multiply(x[: most - 3], weight, gated=form.gated, eps=eps)
        wanted = expected[: most - 3]
        apart = float((found - wanted).norm() / wanted.norm())
        if not apart < _MOST_APART:
            raise TrialError(f"products of {most - 3} rows are {apart:.1e} off")
        first = found if first is None else first
        if not torch.equal(first, found[: len(first)]):
            raise TrialError(f"a row has other bits among {most - 3}")


def by_definition(
    x: torch.Tensor, weight: torch.Tensor, *, gated: bool, eps: float | None
) -> torch.Tensor:
    """What `rows_in.multiply` rounds, in float64."""
    wide = x.double()
    product = wide @ weight.double().T
    if eps is not None:
        product *= (wide.square().mean(1, keepdim=True) + eps).rsqrt()
    if not gated:
        return product
    gate, up = product.chunk(2, 1)
    return F.silu(gate) * up
