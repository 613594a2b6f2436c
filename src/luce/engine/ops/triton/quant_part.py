"""One of the matrices that a quantised product is of."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from luce.engine.ops.triton.quant_words import FormatFlags
from luce.engine.quant_planes import QuantPlanes


@dataclass(frozen=True, slots=True)
class QuantPart:
    """One matrix: its planes, where its rows begin in the output, and its compile-time facts."""

    planes: QuantPlanes
    start: int
    pointers: tuple[torch.Tensor, ...]
    flags: dict[str, int | bool | str]

    @classmethod
    def of(cls, planes: QuantPlanes, start: int) -> QuantPart:
        flags = asdict(FormatFlags.of(planes.format))
        codes = planes.codes
        # The same plane twice: once read wide, once word by word, which is decided by the name.
        # Pointers of planes that are not there are not read.
        pointers = (
            codes,
            codes,
            codes if planes.high is None else planes.high,
            planes.scales,
            planes.scales if planes.blocks is None else planes.blocks,
        )
        return cls(planes, start, pointers, flags)
