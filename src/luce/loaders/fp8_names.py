"""How FP8 matrices of safetensors files and their scales are named and shaped."""

from __future__ import annotations

from collections.abc import Iterator

FP8_TYPE = "F8_E4M3"
BLOCK = 128
SCALE_NAMES = ("weight_scale_inv", "weight_scale")
UNUSED_NAMES = ("input_scale", "k_scale", "v_scale")
"""Scales of activations: luce computes those products in a wider type."""


def scale_shapes(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The shapes that scales of this name may have for a matrix of this shape."""
    single: tuple[tuple[int, ...], ...] = ((), (1,))
    rows, columns = shape
    if name.endswith("_inv"):
        return (*single, (-(-rows // BLOCK), -(-columns // BLOCK)))
    return (*single, (1, 1), (rows,), (rows, 1))


def companions(name: str) -> Iterator[str]:
    """Names of the tensors that may stand beside an FP8 matrix "x.weight"."""
    stem = name.removesuffix("weight")
    for suffix in (*SCALE_NAMES, *UNUSED_NAMES):
        yield stem + suffix
