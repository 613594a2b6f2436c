"""Quantised matrix products the plain way: decode the planes, then multiply."""

from __future__ import annotations

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.quant_matmul import check_parts
from luce.engine.ops.ref.decoded_linear import DecodedLinear
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import GROUP, CodePlane, ScaleKind


def _bytes_of(words: torch.Tensor) -> torch.Tensor:
    """int32 [N, 2, K/8] in the order of `CodePlane.EIGHT` → uint8 [N, K] in column order."""
    rows = len(words)
    halves = words.contiguous().view(torch.uint8).view(rows, 2, -1, 2, 2)
    return halves.permute(0, 2, 4, 1, 3).reshape(rows, -1)


def _unpack(plane: CodePlane, words: torch.Tensor) -> torch.Tensor:
    """A code plane as uint8 [N, K]."""
    if plane is CodePlane.EIGHT:
        return _bytes_of(words.view(len(words), 2, -1))
    if plane is CodePlane.FOUR:
        low, high = words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F
        return _bytes_of(torch.stack([low, high], dim=1))
    if plane is CodePlane.TWO:
        halves = words.view(len(words), 2, -1)
        each = [(halves >> 2 * w) & 0x03030303 for w in range(4)]
    else:
        halves = torch.stack([words, words >> 4], dim=1)
        each = [(halves >> w) & 0x01010101 for w in range(4)]
    return _bytes_of(torch.stack(each, dim=-1).flatten(2))


def decode_codes(planes: QuantPlanes) -> torch.Tensor:
    """The codes, less their zero or through their table: float32 [N, K]."""
    form = planes.format
    codes = _unpack(form.codes, planes.codes)
    if planes.high is not None and form.high is not None:
        codes = codes | (_unpack(form.high, planes.high) << form.codes.value)
    if form.table is not None:
        return torch.tensor(form.table, dtype=torch.float32, device=codes.device)[codes.long()]
    if form.is_signed:
        return codes.view(torch.int8).float()
    return codes.float() - form.zero


def _halves(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 as two float16, low and high, in float32."""
    pairs = words.contiguous().view(torch.float16).view(*words.shape, 2).float()
    return pairs[..., 0], pairs[..., 1]


def _byte_pairs(words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return words.contiguous().view(dtype).view(*words.shape, 2)


def _per_group(planes: QuantPlanes, values: torch.Tensor) -> torch.Tensor:
    """Something per 256 columns, repeated for each scale."""
    width = 16 if planes.format.groups_of_16 else GROUP
    return values.repeat_interleave(256 // width, dim=1)


def decode_scales(planes: QuantPlanes) -> tuple[torch.Tensor, torch.Tensor | None]:
    """S and B in float32, [N, K/32] or [N, K/16]; the order of the operations is ggml's."""
    kind, scales = planes.format.scale, planes.scales
    if kind is ScaleKind.HALF:
        return scales.float(), None
    if kind is ScaleKind.HALF_OFFSET:
        return _halves(scales)
    if kind is ScaleKind.POWER:
        return torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.int() - 128), None
    assert planes.blocks is not None
    if planes.format.has_offset:
        block, block_min = _halves(planes.blocks)
        if kind is ScaleKind.BYTE_OFFSET:
            pairs = _byte_pairs(scales, torch.uint8)
            scale, minimum = pairs[..., 0], pairs[..., 1]
        else:
            pairs = _byte_pairs(scales, torch.uint8).flatten(1)
            scale, minimum = pairs & 15, pairs >> 4
        offset = _per_group(planes, block_min) * minimum.float()
        return _per_group(planes, block) * scale.float(), -offset
    block = _per_group(planes, planes.blocks.float())
    if kind is ScaleKind.BYTE:
        return block * scales.float(), None
    if kind is ScaleKind.SIXTEEN:
        return block * _byte_pairs(scales, torch.int8).flatten(1).float(), None
    groups = planes.columns // GROUP
    low = scales[:, :groups]
    nibbles = torch.stack([low & 15, low >> 4], dim=-1).flatten(1)
    high = scales[:, groups:]
    tops = torch.stack([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=-1).flatten(1)
    return block * ((nibbles | (tops << 4)).float() - 32), None


def decode(planes: QuantPlanes) -> torch.Tensor:
    """The matrix in float32 [N, K], equal to ggml's to the last bit."""
    codes = decode_codes(planes)
    scale, offset = decode_scales(planes)
    width = planes.columns // scale.shape[1]
    values = codes.view(planes.rows, -1, width) * scale.unsqueeze(-1)
    if offset is not None:
        values = values + offset.unsqueeze(-1)
    return values.flatten(1)


def lookup(planes: QuantPlanes, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`ops.quant_matmul.QuantLookup`: gathers rows of the planes and decodes them."""
    return decode(planes.gathered(row_ids.long())).to(dtype)


def linear(parts: list[QuantPlanes], bias: torch.Tensor | None) -> Linear:
    """`ops.quant_matmul.QuantPacker`: decodes the planes for every product."""
    check_parts(parts, bias)
    return DecodedLinear(parts, bias, decode)
