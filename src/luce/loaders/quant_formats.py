"""How each GGUF block type lies in memory once its blocks are taken apart into planes.

A stored block mixes codes, scales and high bits in one run of bytes of an odd length. Kernels
want whole aligned words of one kind, so a matrix is split into planes: codes by bit width, scales
by group, block scales. Nothing is rounded: the planes hold the very bits of the file, and they
take at most 3 % more room. `repack` makes them; the kernels read them.

All planes are row-major with rows of the matrix as rows. A group is 32 columns. Codes:

- `FOUR`: int32 [N, K/8], word w of a group holds its columns 8w..8w+7, nibble p column
  `NIBBLE_COLUMNS[p]`. The low nibbles of the four bytes are then columns 0, 4, 1, 5 and the high
  ones 2, 6, 3, 7; `(word >> 4i) & 0x000f000f` are the neighbours 2i and 2i+1.
- `EIGHT`: int32 [N, 2*K/8], first a half row of words with the bytes of columns 0, 4, 1, 5 of
  each eight, then one with those of 2, 6, 3, 7.
- `TWO`: int32 [N, 2*K/32], likewise two half rows, one word a group in each: bits 2w, 2w+1 of
  a byte belong to the byte word w has in `EIGHT`.
- `ONE`: int32 [N, K/32]: bit w of a byte belongs to the byte word w has in the first half row of
  `EIGHT`, bit 4+w to that in the second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from luce.loaders.checkpoint import TensorMeta

GROUP = 32
BLOCK = 256
NIBBLE_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)

IQ4_CODES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class CodePlane(Enum):
    """Which kind of code plane."""

    FOUR = 4
    EIGHT = 8
    TWO = 2
    ONE = 1


class ScaleKind(Enum):
    """How the scale S and the offset B of `value = S * code + B` are stored.

    Two-level kinds have a `block` plane too, one entry for 256 columns: float16 d, or with an
    offset int32 with d in the low and dmin in the high half.
    """

    HALF = "half"
    """float16 [N, K/32]: S."""
    HALF_OFFSET = "half_offset"
    """int32 [N, K/32], two float16: S low, B high."""
    POWER = "power"
    """uint8 [N, K/32]: S = 2^(e - 128)."""
    BYTE = "byte"
    """int8 [N, K/32]: S = d * s."""
    BYTE_OFFSET = "byte_offset"
    """int16 [N, K/32], low byte s, high byte m, unsigned: S = d * s, B = -dmin * m."""
    SIXTEEN = "sixteen"
    """int16 [N, K/32], two int8, one for each 16 columns: S = d * s."""
    SIXTEEN_OFFSET = "sixteen_offset"
    """int16 [N, K/32], a byte for each 16 columns: S = d * low nibble, B = -dmin * high."""
    SIXTEEN_SIX = "sixteen_six"
    """uint8 [N, K/32 + K/64], a nibble for each 16 columns, then two high bits each:
    S = d * (s - 32)."""


# Bytes of the scales of two groups.
_GROUP_PAIR_BYTES = {
    ScaleKind.HALF: 4,
    ScaleKind.HALF_OFFSET: 8,
    ScaleKind.POWER: 2,
    ScaleKind.BYTE: 2,
    ScaleKind.BYTE_OFFSET: 4,
    ScaleKind.SIXTEEN: 4,
    ScaleKind.SIXTEEN_OFFSET: 4,
    ScaleKind.SIXTEEN_SIX: 3,
}


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """The planes of one stored type.

    Attributes:
        name: GGUF's.
        codes: plane of the codes' low bits.
        high: plane of the bits above those, or None.
        zero: what is taken from a code before it is scaled.
        table: values of the codes instead, or None.
        is_signed: codes are signed bytes.
        scale: kind of scales.
    """

    name: str
    codes: CodePlane
    scale: ScaleKind
    high: CodePlane | None = None
    zero: int = 0
    table: tuple[int, ...] | None = None
    is_signed: bool = False

    @property
    def is_two_level(self) -> bool:
        """Whether there is a `block` plane; rows are then whole blocks of 256."""
        return self.scale not in (ScaleKind.HALF, ScaleKind.HALF_OFFSET, ScaleKind.POWER)

    @property
    def has_offset(self) -> bool:
        """Whether B is not 0."""
        return self.scale.value.endswith("_offset")

    @property
    def groups_of_16(self) -> bool:
        """Whether a scale is for 16 columns instead of 32."""
        return self.scale.value.startswith("sixteen")

    @property
    def column_multiple(self) -> int:
        """What the number of columns must divide by."""
        return BLOCK if self.is_two_level else GROUP

    def row_bytes(self, columns: int) -> int:
        """Memory of one row in planes."""
        code_bits = self.codes.value + (self.high.value if self.high is not None else 0)
        scales = columns // GROUP * _GROUP_PAIR_BYTES[self.scale] // 2
        block = (4 if self.has_offset else 2) * columns // BLOCK if self.is_two_level else 0
        return columns * code_bits // 8 + scales + block


_FOUR, _EIGHT, _TWO, _ONE = CodePlane.FOUR, CodePlane.EIGHT, CodePlane.TWO, CodePlane.ONE

QUANT_FORMATS: dict[str, QuantFormat] = {
    kind.name: kind
    for kind in (
        QuantFormat("Q4_0", _FOUR, ScaleKind.HALF, zero=8),
        QuantFormat("Q4_1", _FOUR, ScaleKind.HALF_OFFSET),
        QuantFormat("Q5_0", _FOUR, ScaleKind.HALF, high=_ONE, zero=16),
        QuantFormat("Q5_1", _FOUR, ScaleKind.HALF_OFFSET, high=_ONE),
        QuantFormat("Q8_0", _EIGHT, ScaleKind.HALF, is_signed=True),
        QuantFormat("Q2_K", _TWO, ScaleKind.SIXTEEN_OFFSET),
        QuantFormat("Q3_K", _TWO, ScaleKind.SIXTEEN_SIX, high=_ONE, zero=4),
        QuantFormat("Q4_K", _FOUR, ScaleKind.BYTE_OFFSET),
        QuantFormat("Q5_K", _FOUR, ScaleKind.BYTE_OFFSET, high=_ONE),
        QuantFormat("Q6_K", _FOUR, ScaleKind.SIXTEEN, high=_TWO, zero=32),
        QuantFormat("IQ4_NL", _FOUR, ScaleKind.HALF, table=IQ4_CODES, is_signed=True),
        QuantFormat("IQ4_XS", _FOUR, ScaleKind.BYTE, table=IQ4_CODES, is_signed=True),
        QuantFormat("MXFP4", _FOUR, ScaleKind.POWER, table=E2M1_DOUBLED, is_signed=True),
    )
}


def has_planes(meta: TensorMeta) -> bool:
    """Whether a stored matrix can stay quantised: its type has planes and its rows fill them.

    So can the matrices of all experts in one tensor.
    """
    form = QUANT_FORMATS.get(meta.type)
    return (
        form is not None
        and len(meta.shape) in (2, 3)
        and meta.shape[-1] % form.column_multiple == 0
    )


def as_matrix(meta: TensorMeta) -> TensorMeta:
    """The matrices of all experts, [E, N, K], as one of E * N rows."""
    return replace(meta, shape=(math.prod(meta.shape[:-1]), meta.shape[-1]))
