"""How FP8 matrices of safetensors files and their scales are named and shaped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from luce.loaders.checkpoint import TensorMeta, TensorSource

FP8_TYPE = "F8_E4M3"
BLOCK = 128
SCALE_NAMES = ("weight_scale_inv", "weight_scale")
UNUSED_NAMES = ("input_scale", "k_scale", "v_scale")
"""Scales of activations: luce computes those products in a wider type."""
ScaleForm = Literal["one", "row", "block"]
"""One scale for a matrix, one a row, or one for 128x128 numbers."""


def is_fp8(meta: TensorMeta) -> bool:
    """Whether a tensor is a matrix of FP8 numbers."""
    return meta.type == FP8_TYPE and len(meta.shape) == 2


def scale_form(scales: tuple[int, ...], matrix: tuple[int, ...]) -> ScaleForm | None:
    """What scales of this shape are to a matrix of that shape; None: nothing."""
    rows, columns = matrix
    if scales in ((), (1,), (1, 1)):
        return "one"
    if scales in ((rows,), (rows, 1)):
        return "row"
    return "block" if scales == (-(-rows // BLOCK), -(-columns // BLOCK)) else None


def companions(name: str) -> Iterator[str]:
    """Names of the tensors that may stand beside an FP8 matrix "x.weight"."""
    stem = name.removesuffix("weight")
    for suffix in (*SCALE_NAMES, *UNUSED_NAMES):
        yield stem + suffix


def scales_of(source: TensorSource, name: str) -> TensorMeta | None:
    """The tensor with the scales of an FP8 matrix, if it is there."""
    for suffix in SCALE_NAMES:
        try:
            return source.meta(name.removesuffix("weight") + suffix)
        except KeyError:
            continue
    return None
