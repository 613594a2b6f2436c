"""Matrix products through oneDNN with the weight packed once, for float32 on a CPU.

Measured on two AVX-512 cores with a 135M model, all products of a step, tokens a second at
1 / 4 / 8 / 16 / 512 rows: plain 23 / 63 / 136 / 225 / 853, packed 44 / 179 / 318 / 497 / 1015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

# Rows the packed layout is chosen for; decode steps have a few.
_EXPECTED_ROWS = 8
# One or two rows take another kernel of oneDNN, which reads the weights more slowly than the one
# for four: 18.6 and 20.3 ms against 16.0 for the layers of the model above. So they are repeated.
_FEWEST_ROWS = 3
_REPEATED_ROWS = 4
_PROBE_SHAPES = ((1, 32, 48), (5, 48, 96), (40, 96, 32))
_PROBE_TOLERANCE = 1e-5


def _onednn() -> Any:
    # These operators are PyTorch's own, made for its compiler and not documented: `refusal`
    # tries them before they are relied upon.
    return torch.ops.mkldnn


class PackedLinear:
    """oneDNN's product over a weight in its own blocked layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        onednn = _onednn()
        self._bias = bias
        self._packed: torch.Tensor = onednn._reorder_linear_weight(weight, _EXPECTED_ROWS)
        self._nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._product = onednn._linear_pointwise.default
        self._product_add = onednn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] → [T, out]."""
        rows = x.shape[0]
        if rows < _FEWEST_ROWS:
            x = x.expand(_REPEATED_ROWS, -1) if rows == 1 else x.repeat(_REPEATED_ROWS // rows, 1)
        out: torch.Tensor = self._product(x, self._packed, self._bias, "none", [], "")
        return out if rows >= _FEWEST_ROWS else out[:rows]

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y."""
        if x.shape[0] < _FEWEST_ROWS:
            return self(x).add_(residual)
        out: torch.Tensor = self._product_add(x, residual, self._packed, self._bias, "add")
        return out

    def holds(self, weight: torch.Tensor) -> bool:
        """Never: the packed layout is a copy."""
        del weight
        return False

    @property
    def nbytes(self) -> int:
        """Memory of weight and bias; the layout pads little."""
        return self._nbytes


@dataclass(frozen=True, slots=True)
class _Probe:
    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    residual: torch.Tensor


def _probes() -> list[_Probe]:
    generator = torch.Generator().manual_seed(0)
    return [
        _Probe(
            torch.randn(rows, columns, generator=generator),
            torch.randn(out, columns, generator=generator),
            torch.randn(out, generator=generator),
            torch.randn(rows, out, generator=generator),
        )
        for rows, columns, out in _PROBE_SHAPES
    ]


def refusal() -> str | None:
    """Why the packed product cannot be used in this process, or None if it can."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this PyTorch has no oneDNN"
    try:
        return _first_difference()
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        return f"oneDNN's packed product does not run here: {str(error).splitlines()[0]}"


def _first_difference() -> str | None:
    for probe in _probes():
        packed = PackedLinear(probe.weight, probe.bias)
        expected = F.linear(probe.x, probe.weight, probe.bias)
        found = (packed(probe.x), packed.add_to(probe.residual.clone(), probe.x) - probe.residual)
        for values in found:
            difference = (values - expected).abs().max().item() / expected.abs().max().item()
            if not difference <= _PROBE_TOLERANCE:
                return f"oneDNN's packed product differs from the plain one by {difference:.1e}"
    return None
