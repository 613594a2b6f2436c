"""Takes stored GGUF blocks apart into planes, exactly; on a CPU or on the device itself.

`repack` is elementwise work on whole runs of rows: on a GPU the stored bytes are copied as they
are and taken apart there. Layouts: `quant_formats`; block layouts: ggml's definitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from luce.loaders.ggml_types import TYPES_BY_NAME
from luce.loaders.quant_formats import QUANT_FORMATS, CodePlane, QuantFormat

# Spreads nothing, gathers: four nibbles at bits 0, 16, 32, 48 meet at bits 48..63.
_GATHER_NIBBLES = (1 << 48) + (1 << 36) + (1 << 24) + (1 << 12)
_EVEN_BYTES = 0x00FF00FF00FF00FF


@dataclass(frozen=True, slots=True)
class QuantPlanes:
    """A matrix [N, K] in planes.

    Attributes:
        format: which planes these are.
        rows: N.
        columns: K.
        codes: low bits of the codes.
        high: high bits, or None.
        scales: one entry a group.
        blocks: one entry for 256 columns, or None.
    """

    format: QuantFormat
    rows: int
    columns: int
    codes: torch.Tensor
    high: torch.Tensor | None
    scales: torch.Tensor
    blocks: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        """Memory of all planes."""
        return sum(part.nbytes for part in self._tensors if part is not None)

    @property
    def _tensors(self) -> tuple[torch.Tensor | None, ...]:
        return self.codes, self.high, self.scales, self.blocks

    def empty(self, rows: int, device: torch.device) -> QuantPlanes:
        """Planes of the same format and width for so many rows, to be filled."""

        def room(plane: torch.Tensor | None) -> torch.Tensor | None:
            return None if plane is None else plane.new_empty(rows, plane.shape[1], device=device)

        codes, scales = room(self.codes), room(self.scales)
        assert codes is not None
        assert scales is not None
        return replace(
            self,
            rows=rows,
            codes=codes,
            high=room(self.high),
            scales=scales,
            blocks=room(self.blocks),
        )

    def gathered(self, rows: torch.Tensor) -> QuantPlanes:
        """The planes of these rows, i64 [n], in their order."""
        high, blocks = self.high, self.blocks
        return replace(
            self,
            rows=rows.numel(),
            codes=self.codes[rows],
            high=None if high is None else high[rows],
            scales=self.scales[rows],
            blocks=None if blocks is None else blocks[rows],
        )

    def fill(self, start: int, part: QuantPlanes) -> None:
        """Put `part` at rows start .. start + part.rows."""
        assert part.format is self.format
        assert part.columns == self.columns
        for mine, theirs in zip(self._tensors, part._tensors, strict=True):
            if mine is not None and theirs is not None:
                mine[start : start + part.rows].copy_(theirs)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a block type gives: codes uint8 [N, K] in column order, and finished scales."""

    codes: torch.Tensor
    scales: torch.Tensor
    blocks: torch.Tensor | None = None


def _as(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The bytes of the last dimension as another type."""
    return data.contiguous().view(dtype)


def _split(data: torch.Tensor, *sizes: int) -> torch.Tensor:
    """The last dimension as several."""
    return data.reshape(*data.shape[:-1], *sizes)


def _nibble_halves(packed: torch.Tensor) -> torch.Tensor:
    """[..., B] → [..., 2, B]: low nibbles, then high ones."""
    return torch.stack([packed & 15, packed >> 4], dim=-2)


def _bits(packed: torch.Tensor, width: int) -> torch.Tensor:
    """[..., B] → [..., 8/width, B]: the fields of each byte, lowest first."""
    return torch.stack(
        [(packed >> shift) & ((1 << width) - 1) for shift in range(0, 8, width)], dim=-2
    )


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """[..., 4] → [..., 32]: bit i of the little-endian word, as 0 or 16."""
    return _bits(packed, 1).transpose(-1, -2).flatten(-2) << 4


def _simple(data: torch.Tensor) -> torch.Tensor:
    return _nibble_halves(data).flatten(-2)


def _q4_0(data: torch.Tensor) -> _Parts:
    return _Parts(_simple(data[..., 2:]), _as(data[..., :2], torch.float16))


def _q4_1(data: torch.Tensor) -> _Parts:
    return _Parts(_simple(data[..., 4:]), _as(data[..., :4], torch.int32))


def _q5_0(data: torch.Tensor) -> _Parts:
    codes = _simple(data[..., 6:]) | _fifth_bits(data[..., 2:6])
    return _Parts(codes, _as(data[..., :2], torch.float16))


def _q5_1(data: torch.Tensor) -> _Parts:
    codes = _simple(data[..., 8:]) | _fifth_bits(data[..., 4:8])
    return _Parts(codes, _as(data[..., :4], torch.int32))


def _q8_0(data: torch.Tensor) -> _Parts:
    return _Parts(data[..., 2:], _as(data[..., :2], torch.float16))


def _mxfp4(data: torch.Tensor) -> _Parts:
    return _Parts(_simple(data[..., 1:]), data[..., :1])


def _two_bits(packed: torch.Tensor) -> torch.Tensor:
    """[..., 64] → [..., 256]: byte l of a half holds elements l, 32+l, 64+l and 96+l of it."""
    return _bits(_split(packed, 2, 32), 2).flatten(-3)


def _q2_k(data: torch.Tensor) -> _Parts:
    scales = _as(data[..., :16], torch.int16)
    return _Parts(_two_bits(data[..., 16:80]), scales, _as(data[..., 80:84], torch.int32))


def _q3_k(data: torch.Tensor) -> _Parts:
    codes = _two_bits(data[..., 32:96]) | (_bits(data[..., :32], 1).flatten(-2) << 2)
    low, high = data[..., 96:104], data[..., 104:108]
    nibbles = _nibble_halves(low).flatten(-2)
    pairs = _bits(high, 2).flatten(-2)
    # Two neighbours share a byte of nibbles, four a byte of high bits.
    packed = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
    tops = pairs[..., 0::4] | (pairs[..., 1::4] << 2)
    tops = tops | (pairs[..., 2::4] << 4) | (pairs[..., 3::4] << 6)
    rows = len(data)
    scales = torch.cat([packed.reshape(rows, -1), tops.reshape(rows, -1)], dim=1)
    return _Parts(codes, scales, _as(data[..., 108:110], torch.float16))


def _k_scales(packed: torch.Tensor) -> torch.Tensor:
    """The 8 six-bit scales and minima of Q4_K and Q5_K as bytes of int16: [..., 12] → [..., 8]."""
    low, middle, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = torch.cat([low & 63, (high & 15) | ((low >> 6) << 4)], dim=-1)
    minima = torch.cat([middle & 63, (high >> 4) | ((middle >> 6) << 4)], dim=-1)
    return _as(torch.stack([scales, minima], dim=-1), torch.int16).squeeze(-1)


def _chunk_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[..., 128] → [..., 8, 32]: of each 32 bytes first the low nibbles, then the high ones."""
    return _nibble_halves(_split(packed, 4, 32)).flatten(-3, -2)


def _q4_k(data: torch.Tensor) -> _Parts:
    codes = _chunk_nibbles(data[..., 16:]).flatten(-2)
    return _Parts(codes, _k_scales(data[..., 4:16]), _as(data[..., :4], torch.int32))


def _q5_k(data: torch.Tensor) -> _Parts:
    codes = (_chunk_nibbles(data[..., 48:]) | (_bits(data[..., 16:48], 1) << 4)).flatten(-2)
    return _Parts(codes, _k_scales(data[..., 4:16]), _as(data[..., :4], torch.int32))


def _q6_k(data: torch.Tensor) -> _Parts:
    low = _nibble_halves(_split(data[..., :128], 2, 64)).flatten(-2)
    high = _bits(_split(data[..., 128:192], 2, 32), 2).flatten(-2)
    codes = (low | (high << 4)).flatten(-2)
    scales = _as(data[..., 192:208], torch.int16)
    return _Parts(codes, scales, _as(data[..., 208:210], torch.float16))


def _iq4_xs(data: torch.Tensor) -> _Parts:
    codes = _nibble_halves(_split(data[..., 8:], 8, 16)).flatten(-3)
    low = _nibble_halves(data[..., 4:8]).transpose(-1, -2).flatten(-2)
    high = _bits(data[..., 2:4], 2).transpose(-1, -2).flatten(-2)
    scales = _as(low | (high << 4), torch.int8) - 32
    return _Parts(codes, scales, _as(data[..., :2], torch.float16))


_SPLITTERS: dict[str, Callable[[torch.Tensor], _Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _q4_0,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}


def _pack_four(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [N, K] of nibbles → `CodePlane.FOUR`."""
    eights = _as(codes, torch.int64)
    even = ((eights & _EVEN_BYTES) * _GATHER_NIBBLES >> 48) & 0xFFFF
    odd = ((eights >> 8 & _EVEN_BYTES) * _GATHER_NIBBLES >> 32) & 0xFFFF0000
    return (even | odd).to(torch.int32)


def _pack_eight(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [N, K] → `CodePlane.EIGHT`, as int32 [N, 2, K/8]."""
    fours = _split(codes, -1, 2, 2, 2)
    # Of column 4a + 2b + c: half row b, byte 2c + a.
    halves = fours.permute(0, 3, 1, 4, 2).reshape(len(codes), 2, -1)
    return _as(halves, torch.int32)


def _pack_two(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [N, K] of two bits → `CodePlane.TWO`."""
    words = _split(_pack_eight(codes), -1, 4)
    packed = words[..., 0] | words[..., 1] << 2 | words[..., 2] << 4 | words[..., 3] << 6
    return packed.flatten(1)


def _pack_one(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [N, K] of one bit → `CodePlane.ONE`."""
    words = _split(_pack_eight(codes), -1, 4)
    halves = words[..., 0] | words[..., 1] << 1 | words[..., 2] << 2 | words[..., 3] << 3
    return halves[:, 0] | halves[:, 1] << 4


_PACKERS: dict[CodePlane, Callable[[torch.Tensor], torch.Tensor]] = {
    CodePlane.FOUR: _pack_four,
    CodePlane.EIGHT: lambda codes: _pack_eight(codes).flatten(1),
    CodePlane.TWO: _pack_two,
    CodePlane.ONE: _pack_one,
}


def repack(type_name: str, raw: torch.Tensor, rows: int, columns: int) -> QuantPlanes:
    """Take a matrix, or a run of its rows, apart.

    Args:
        type_name: a key of `QUANT_FORMATS`.
        raw: uint8, flat, the stored bytes of these rows, on any device; they are only read.
        rows: N.
        columns: K, whole blocks.

    Raises:
        KeyError: the type has no planes.
        ValueError: rows do not fill whole blocks, or the bytes do not fit the shape.
    """
    form = QUANT_FORMATS[type_name]
    kind = TYPES_BY_NAME[type_name]
    if columns % kind.block_elements:
        raise ValueError(f"{columns} columns do not fill {type_name} blocks")
    blocks = columns // kind.block_elements
    if raw.numel() != rows * blocks * kind.block_bytes:
        raise ValueError(f"{raw.numel()} bytes are not {rows}x{columns} of {type_name}")
    parts = _SPLITTERS[type_name](raw.view(rows, blocks, kind.block_bytes))
    codes = parts.codes.reshape(rows, columns)
    low_mask = (1 << form.codes.value) - 1
    high = None
    if form.high is not None:
        high = _PACKERS[form.high](codes >> form.codes.value)
    return QuantPlanes(
        format=form,
        rows=rows,
        columns=columns,
        codes=_PACKERS[form.codes](codes & low_mask if form.high is not None else codes),
        high=high,
        scales=parts.scales.reshape(rows, -1).contiguous(),
        blocks=None if parts.blocks is None else parts.blocks.reshape(rows, -1).contiguous(),
    )


def empty_planes(type_name: str, rows: int, columns: int, device: torch.device) -> QuantPlanes:
    """Planes of a stored type to be filled run by run of rows.

    Raises:
        KeyError: the type has no planes.
        ValueError: rows do not fill whole blocks.
    """
    kind = TYPES_BY_NAME[type_name]
    row_bytes = columns // kind.block_elements * kind.block_bytes
    # One row of zeros, to learn the planes' shapes and types from.
    return repack(type_name, torch.zeros(row_bytes, dtype=torch.uint8), 1, columns).empty(
        rows, device
    )
