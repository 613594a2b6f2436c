"""Token-wise operations with fewer passes over memory, for float32 on a CPU.

At one token a PyTorch call costs 2-5 us whatever it does, so the number of calls decides; at
hundreds of tokens the passes over memory do.
"""

from __future__ import annotations

import functools

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`ops.pointwise.RmsNorm`; the 2-norm is one pass without a squared copy of x."""
    norm = torch.linalg.vector_norm(x, 2, -1, True)
    scale = torch.addcmul(_scalar(eps), norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
    return torch.mul(x, scale).mul_(weight)


@functools.cache
def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value)


def rotate_interleaved(x: torch.Tensor, rotary: torch.Tensor) -> None:
    """`ops.pointwise.Rotate` for pairs (2i, 2i + 1): a pair is a complex number.

    Exact: (a + bi)(cos + i sin) is the rotation itself.
    """
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    pairs.mul_(torch.view_as_complex(rotary))


def rotate_half(x: torch.Tensor, rotary: torch.Tensor) -> None:
    """`ops.pointwise.Rotate` for pairs (i, i + D/2), one temporary."""
    left, right = x.chunk(2, dim=-1)
    cosine, sine = rotary.unbind(-1)
    from_left = left * sine
    left.mul_(cosine).addcmul_(right, sine, value=-1)
    right.mul_(cosine).add_(from_left)
