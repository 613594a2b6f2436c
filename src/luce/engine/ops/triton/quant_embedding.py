"""Rows of a quantised table, decoded: the embedding of tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from luce.engine.ops.triton.numeric import INTERPRETED, LAUNCH, wait_for_inputs
from luce.engine.ops.triton.quant_tile import tile_of_weights
from luce.engine.ops.triton.quant_words import FormatFlags, load_scales
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import GROUP

_ROWS, _GROUPS = 4, 32


@triton.jit(
    do_not_specialize=["num_ids"],
    do_not_specialize_on_alignment=["ids_ptr", "two_ptr", "high_ptr", "scales_ptr", "blocks_ptr"],
)
def _lookup_kernel(
    out_ptr, ids_ptr, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, num_ids,
    num_groups: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Program (run of tokens, run of groups)."""
    wait_for_inputs()
    index = tl.program_id(0) * BN + tl.arange(0, BN)
    first_group = tl.program_id(1) * BG
    rows = tl.load(ids_ptr + tl.minimum(index, num_ids - 1))
    groups = tl.minimum(first_group + tl.arange(0, BG), num_groups - 1)
    scale, block, top = load_scales(
        scales_ptr, blocks_ptr, rows[:, None], groups[None, :], num_groups, SCALE, BG
    )
    values = tile_of_weights(
        codes_ptr, two_ptr, high_ptr, scale, block, top, rows, groups, first_group, num_ids,
        num_groups, BN, BG, CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, ASM,
    )  # fmt: skip
    columns = first_group * 32 + tl.arange(0, BG * 32)
    at = index[:, None].to(tl.int64) * (num_groups * 32) + columns[None, :]
    mask = (index[:, None] < num_ids) & (columns[None, :] < num_groups * 32)
    tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), mask=mask)


def quant_lookup(planes: QuantPlanes, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`ops.quant_matmul.QuantLookup`."""
    count, codes = row_ids.numel(), planes.codes
    out = torch.empty(count, planes.columns, dtype=dtype, device=codes.device)
    flags = FormatFlags.of(planes.format)
    groups = planes.columns // GROUP
    _lookup_kernel[(triton.cdiv(count, _ROWS), triton.cdiv(groups, _GROUPS))](
        out,
        row_ids,
        codes,
        codes,
        codes if planes.high is None else planes.high,
        planes.scales,
        planes.scales if planes.blocks is None else planes.blocks,
        count,
        num_groups=groups,
        BN=_ROWS,
        BG=_GROUPS,
        CODES=flags.codes,
        HIGH=flags.high,
        ZERO=flags.zero,
        TABLE=flags.table,
        SIGNED=flags.is_signed,
        SCALE=flags.scale,
        ASM=not INTERPRETED and codes.is_cuda and torch.version.hip is None,
        num_warps=4,
        **LAUNCH,
    )
    return out
