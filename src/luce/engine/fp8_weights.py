"""Matrices that stay FP8 in a device's memory: the file's bytes, and its scales in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from luce.engine.fp8_scales import Fp8Scales
from luce.loaders.fp8_names import BLOCK


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A matrix [N, K] of e4m3 numbers, or several of one width, one below the other.

    Attributes:
        codes: uint8 [N, K], contiguous: the numbers' bytes.
        scales: f32 on the same device: [N, 1], one a row, or one a block, [N / band *
            ceil(band / 128), ceil(K / 128)].
        is_block: which of the two.
        band: rows after which blocks begin anew; divides N.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    is_block: bool
    band: int

    @property
    def rows(self) -> int:
        """N."""
        return self.codes.shape[0]

    @property
    def columns(self) -> int:
        """K."""
        return self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """Memory of numbers and scales."""
        return self.codes.nbytes + self.scales.nbytes

    @property
    def band_blocks(self) -> int:
        """Rows of scales of a band."""
        return -(-self.band // BLOCK)


StoredPart = Fp8Matrix | torch.Tensor
"""FP8, or a plain matrix in the compute type."""


def stackable(scales: Sequence[Fp8Scales]) -> Iterator[list[int]]:
    """Which matrices, one below the other, have scales that make one `Fp8Matrix` of one band.

    Args:
        scales: of each.

    Yields:
        Indices of neighbours.
    """
    run: list[int] = []
    for index, each in enumerate(scales):
        if run:
            last = scales[run[-1]]
            fits = not last.is_block or last.rows % BLOCK == 0
            if each.is_block != last.is_block or not fits:
                yield run
                run = []
        run.append(index)
    if run:
        yield run


def empty_fp8(
    scales: Sequence[Fp8Scales], columns: int, device: torch.device, band: int | None = None
) -> Fp8Matrix:
    """A matrix whose numbers are to be filled in.

    Args:
        scales: of the matrices that it is made of, all of one kind, in order.
        columns: K.
        device: where it goes.
        band: rows of each of them; None: they are one band.
    """
    rows = sum(each.rows for each in scales)
    values = [each.values if each.is_block else each.values.expand(each.rows, 1) for each in scales]
    return Fp8Matrix(
        codes=torch.empty(rows, columns, dtype=torch.uint8, device=device),
        scales=torch.cat(values).to(device),
        is_block=scales[0].is_block,
        band=rows if band is None else band,
    )
