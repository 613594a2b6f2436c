"""What kernels over quantised planes are told of a format, and given for a product."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import CodePlane, QuantFormat, ScaleKind


@dataclass(frozen=True, slots=True)
class StoredScales:
    """How a kind of scales lies in its plane.

    Attributes:
        number: the texts' name for it.
        group_bytes: of a group of 32 columns.
        block_bytes: of an entry for 256 columns.
    """

    number: int
    group_bytes: int
    block_bytes: int = 0


SCALES = {
    ScaleKind.HALF: StoredScales(0, 2),
    ScaleKind.HALF_OFFSET: StoredScales(1, 4),
    ScaleKind.BYTE_OFFSET: StoredScales(2, 2, 4),
    ScaleKind.POWER: StoredScales(3, 1),
    ScaleKind.BYTE: StoredScales(4, 1, 2),
    ScaleKind.SIXTEEN: StoredScales(5, 2, 2),
}
_HIGH_PARTS = {None: 0, CodePlane.ONE: 1, CodePlane.TWO: 2}


def code_parts(form: QuantFormat) -> tuple[int, int]:
    """How many words of a group's codes, and of their high bits, lie apart."""
    return form.codes.value // 4, _HIGH_PARTS[form.high]


def format_constants(form: QuantFormat) -> dict[str, int]:
    """What a text wants defined of a format."""
    scales, (low, high) = SCALES[form.scale], code_parts(form)
    table = bytes(value & 0xFF for value in form.table or (0,) * 16)
    words = [int.from_bytes(table[i : i + 4], "little") for i in range(0, 16, 4)]
    return {
        **{f"SCALE_{kind.name}": each.number for kind, each in SCALES.items()},
        **{f"TABLE_{index}": word for index, word in enumerate(words)},
        "SCALE": scales.number,
        "BLOCK_BYTES": scales.block_bytes,
        "CODES": form.codes.value,
        "CODE_PARTS": low,
        "HIGH": 0 if form.high is None else form.high.value,
        "HIGH_PARTS": high,
        "TABLE": int(form.table is not None),
        "ZERO": form.zero,
    }


def tensor_operands(
    planes: QuantPlanes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> list[torch.Tensor]:
    """x, out, residual, bias, codes, high bits, scales, blocks; another in place of what is not."""
    return [
        x,
        out,
        out if residual is None else residual,
        x if bias is None else bias,
        planes.codes,
        planes.codes if planes.high is None else planes.high,
        planes.scales,
        planes.scales if planes.blocks is None else planes.blocks,
    ]


def number_operands(
    planes: QuantPlanes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    columns: int,
) -> list[int]:
    """Rows of x and of W, its spans of so many columns, strides, whether there is a bias and a
    residual.
    """
    return [
        len(x),
        planes.rows,
        planes.columns // columns,
        x.stride(0),
        out.stride(0),
        int(bias is not None),
        int(residual is not None),
    ]
