"""Rows of a quantised table, decoded: the embedding of tokens.

Few numbers are read, so a thread has eight columns of a row and decodes them one by one: nothing
crosses threads, and no tile changes its layout.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs
from luce.engine.ops.triton.quant_words import (
    FormatFlags,
    decode_scales,
    load_scales,
    table_value,
)
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import GROUP

COLUMNS = 1024
"""Of a row for a program, at most."""


@triton.jit
def load_eights(
    codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, row, eights,
    num_groups: tl.constexpr, CODES: tl.constexpr, HIGH: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """What is stored of some eights of a row's columns, [N, 1], for `decode_eights`."""
    eights = tl.minimum(eights, num_groups * 4 - 1)
    groups = eights // 4
    scales = load_scales(scales_ptr, blocks_ptr, row, groups, num_groups, SCALE, 1)
    if CODES == 4:
        low = tl.load(codes_ptr + row * (4 * num_groups) + eights)
        high = low
    elif CODES == 8:
        at = codes_ptr + row * (8 * num_groups) + eights
        low, high = tl.load(at), tl.load(at + 4 * num_groups)
    else:
        at = two_ptr + row * (2 * num_groups) + groups
        low, high = tl.load(at), tl.load(at + num_groups)
    bits_low = low
    bits_high = low
    if HIGH != 0:
        at = high_ptr + row * (HIGH * num_groups) + groups
        bits_low = tl.load(at)
        bits_high = bits_low
    if HIGH == 2:
        bits_high = tl.load(at + num_groups)
    return low, high, bits_low, bits_high, scales


@triton.jit
def _code(
    stored, word, CODES: tl.constexpr, HIGH: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Codes of the columns of eights, [N, 8], which are words 0 to 3 of their groups."""
    low, high, bits_low, bits_high, _ = stored
    column = tl.arange(0, 8)[None, :]
    # Where a column of eight is: `quant_words`.
    if TABLE != 0:
        return table_value((low >> ((column >> 1) * 4 + (column & 1) * 16)) & 15, TABLE)
    is_high = (column >> 1) & 1
    byte = ((column & 1) * 2 + (column >> 2)) * 8
    if CODES == 4:
        code = (low >> (byte + 4 * is_high)) & 15
    elif CODES == 8:
        code = (tl.where(is_high != 0, high, low) >> byte) & 255
    else:
        code = (tl.where(is_high != 0, high, low) >> (byte + 2 * word)) & 3
    if HIGH == 1:
        code |= ((bits_low >> (byte + 4 * is_high + word)) & 1) << CODES
    if HIGH == 2:
        code |= ((tl.where(is_high != 0, bits_high, bits_low) >> (byte + 2 * word)) & 3) << CODES
    return code


@triton.jit
def decode_eights(
    stored, eights, CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr,
    TABLE: tl.constexpr, SIGNED: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Eights of columns in float32, [N, 8]."""
    scale, block, top = stored[4]
    first, second, offset, offset2 = decode_scales(scale, block, top, eights // 4, SCALE)
    word = eights % 4
    code = _code(stored, word, CODES, HIGH, TABLE)
    if TABLE == 0 and SIGNED:
        code = (code << 24) >> 24
    value = (code - ZERO).to(tl.float32) * tl.where(word < 2, first, second)
    return value + tl.where(word < 2, offset, offset2)


@triton.jit(
    do_not_specialize_on_alignment=["ids_ptr", "two_ptr", "high_ptr", "scales_ptr", "blocks_ptr"],
)
def _lookup_kernel(
    out_ptr, ids_ptr, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr,
    num_groups: tl.constexpr, EIGHTS: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Program (token, run of columns)."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    eights = (tl.program_id(1) * EIGHTS + tl.arange(0, EIGHTS))[:, None]
    stored = load_eights(
        codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, tl.load(ids_ptr + token), eights,
        num_groups, CODES, HIGH, SCALE,
    )  # fmt: skip
    values = decode_eights(stored, eights, CODES, HIGH, ZERO, TABLE, SIGNED, SCALE)
    at = token * (num_groups * 32) + eights * 8 + tl.arange(0, 8)[None, :]
    inside = eights < num_groups * 4
    tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), mask=inside)


def table_pointers(planes: QuantPlanes) -> tuple[torch.Tensor, ...]:
    """Those of `load_eights`; planes that are not there are not read."""
    codes = planes.codes
    high = codes if planes.high is None else planes.high
    blocks = planes.scales if planes.blocks is None else planes.blocks
    return codes, codes, high, planes.scales, blocks


def table_facts(planes: QuantPlanes) -> dict[str, Any]:
    """The constants of `load_eights` and `decode_eights`."""
    flags = FormatFlags.of(planes.format)
    return {
        "CODES": flags.codes,
        "HIGH": flags.high,
        "ZERO": flags.zero,
        "TABLE": flags.table,
        "SIGNED": flags.is_signed,
        "SCALE": flags.scale,
    }


def quant_lookup(planes: QuantPlanes, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`ops.quant_matmul.QuantLookup`."""
    count, columns = row_ids.numel(), planes.columns
    out = torch.empty(count, columns, dtype=dtype, device=planes.codes.device)
    block = min(COLUMNS, power_of_two(columns))
    _lookup_kernel[(count, triton.cdiv(columns, block))](
        out, row_ids, *table_pointers(planes), num_groups=columns // GROUP, EIGHTS=block // 8,
        num_warps=max(1, block // 256), **table_facts(planes), **LAUNCH,
    )  # fmt: skip
    return out
