"""Experts that stay quantised: the kernels of `moe` with weights from planes.

The matrices of all experts lie one below the other in one set of planes. Few tokens: `quant_vector`
for each pair of token and expert. More: tiles of one expert's pairs against tiles of its weights,
which become bfloat16 in registers as in `quant_tile`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import triton
import triton.language as tl

from luce.engine.ops.moe import Routing
from luce.engine.ops.pointwise import SiluAndMul
from luce.engine.ops.triton.moe import most_tiles, tile_place
from luce.engine.ops.triton.moe_stacked import StackedExperts
from luce.engine.ops.triton.numeric import INTERPRETED, LAUNCH, dot, power_of_two, wait_for_inputs
from luce.engine.ops.triton.quant_tile import tile_of_weights
from luce.engine.ops.triton.quant_vector import quant_vector, quantise_rows
from luce.engine.ops.triton.quant_words import FormatFlags, load_scales
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import GROUP

_QUANTISE_GROUPS = 16
_VECTOR_ELEMENTS = 512
_VECTOR_GROUPS = 64
_WARPS = 4


@triton.jit(
    do_not_specialize_on_alignment=[
        "two_ptr", "high_ptr", "scales_ptr", "blocks_ptr", "order", "starts"
    ]
)  # fmt: skip
def _expert_tile_kernel(
    x, y, order, starts, weights, codes_ptr, two_ptr, high_ptr, scales_ptr, blocks_ptr, num_rows,
    E: tl.constexpr, CHOSEN: tl.constexpr, IS_LAST: tl.constexpr, num_groups: tl.constexpr,
    BLOCK_E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Program (rows of the weight, tile of one expert's pairs).

    Reads x by token and writes y in sorted order; IS_LAST: reads x in sorted order and writes y by
    pair, weighted.
    """
    wait_for_inputs()
    expert, first, end = tile_place(starts, tl.program_id(1), E, BLOCK_E, BM)
    if expert >= E:
        return
    places = first + tl.arange(0, BM)
    there = places < end
    pairs = tl.load(order + places, mask=there, other=0)
    sources = (places if IS_LAST else pairs // CHOSEN).to(tl.int64)
    row_index = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = expert * num_rows + tl.minimum(row_index, num_rows - 1)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first_group in range(0, num_groups, BG):
        groups = tl.minimum(first_group + tl.arange(0, BG), num_groups - 1)
        scale, block, top = load_scales(
            scales_ptr, blocks_ptr, rows[:, None], groups[None, :], num_groups, SCALE, BG
        )
        values = tile_of_weights(
            codes_ptr, two_ptr, high_ptr, scale, block, top, rows, groups, first_group, num_rows,
            num_groups, BN, BG, CODES, HIGH, ZERO, TABLE, SIGNED, SCALE, ASM,
        ).to(x.dtype.element_ty)  # fmt: skip
        columns = first_group * 32 + tl.arange(0, BG * 32)
        inside = columns[None, :] < num_groups * 32
        at = x + sources[:, None] * (num_groups * 32) + columns[None, :]
        value = tl.load(at, mask=there[:, None] & inside, other=0.0)
        if num_groups % BG != 0:
            # A scale read beyond the matrix may be infinite, and nothing times that is not 0.
            values = tl.where(inside, values, 0.0)
        total = dot(value, tl.trans(values), total)
    if IS_LAST:
        share = tl.load(weights + pairs, mask=there, other=0.0).to(tl.float32)
        total *= share[:, None]
    targets = (pairs if IS_LAST else places).to(tl.int64)
    target = y + targets[:, None] * num_rows + row_index[None, :]
    mask = there[:, None] & (row_index < num_rows)[None, :]
    tl.store(target, total.to(y.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True)
class QuantMoeTiling:
    """How products of many pairs are cut.

    Attributes:
        pairs: of a tile, all of one expert.
        rows: of a weight.
        groups: of its columns, read at a time.
    """

    pairs: int
    rows: int
    groups: int


QuantMoeTilings = tuple[QuantMoeTiling, QuantMoeTiling]
"""For few pairs an expert, and for more."""
DEFAULT_QUANT_TILINGS = QuantMoeTiling(16, 64, 4), QuantMoeTiling(64, 64, 4)


class _Stack:
    """A matrix for each expert, in planes, and the kernels' compile-time facts about them."""

    def __init__(self, planes: QuantPlanes, num_experts: int, tilings: QuantMoeTilings) -> None:
        assert planes.rows % num_experts == 0
        self._small, self._large = tilings
        self.planes = planes
        self.rows = planes.rows // num_experts
        self.groups = planes.columns // GROUP
        codes = planes.codes
        self.pointers = (
            codes,
            codes,
            codes if planes.high is None else planes.high,
            planes.scales,
            planes.scales if planes.blocks is None else planes.blocks,
        )
        flags = asdict(FormatFlags.of(planes.format))
        self.flags = {
            "num_groups": self.groups,
            "CODES": flags["codes"],
            "HIGH": flags["high"],
            "ZERO": flags["zero"],
            "TABLE": flags["table"],
            "SIGNED": flags["is_signed"],
            "SCALE": flags["scale"],
            "ASM": not INTERPRETED and codes.is_cuda and torch.version.hip is None,
        }

    @property
    def nbytes(self) -> int:
        """Memory of the planes."""
        return self.planes.nbytes

    def by_pair(self, x: torch.Tensor, experts: torch.Tensor, chosen: int) -> torch.Tensor:
        """Rows of x, each for `chosen` experts, times theirs: f32 [T * k, rows]."""
        quantised = torch.empty(len(x), 19, self.groups, dtype=torch.int32, device=x.device)
        quantise_rows[(len(x), triton.cdiv(self.groups, _QUANTISE_GROUPS))](
            x, quantised, x.stride(0), num_groups=self.groups, BG=_QUANTISE_GROUPS,
            TABLE=self.flags["TABLE"], num_warps=1, **LAUNCH,
        )  # fmt: skip
        pairs = experts.numel()
        out = torch.empty(pairs, self.rows, dtype=torch.float32, device=x.device)
        groups = min(_VECTOR_GROUPS, power_of_two(self.groups))
        rows = _VECTOR_ELEMENTS // groups
        quant_vector[(triton.cdiv(self.rows, rows), pairs)](
            x, quantised, out, out, x, *self.pointers,
            self.rows, x.stride(0), out.stride(0),
            T=1, BN=rows, BG=groups, HAS_OFFSET=self.planes.format.has_offset, IS_QUANTISED=True,
            HAS_RESIDUAL=False, HAS_BIAS=False, experts_ptr=experts, CHOSEN=chosen,
            num_warps=2, **self.flags, **LAUNCH,
        )  # fmt: skip
        return out

    def by_expert(
        self,
        x: torch.Tensor,
        sorted_pairs: tuple[torch.Tensor, torch.Tensor],
        routing: Routing,
        *,
        is_last: bool,
    ) -> torch.Tensor:
        """Tiles of pairs times their expert's matrix; see the kernel: [T * k, rows]."""
        order, starts = sorted_pairs
        pairs, num_experts = len(order), len(starts) - 1
        tiling = self._small if pairs <= self._small.pairs * num_experts else self._large
        out = x.new_empty(pairs, self.rows)
        tiles = most_tiles(pairs, num_experts, tiling.pairs)
        _expert_tile_kernel[(triton.cdiv(self.rows, tiling.rows), tiles)](
            x, out, order, starts, routing.weights, *self.pointers, self.rows,
            E=num_experts, CHOSEN=routing.experts.shape[1], IS_LAST=is_last,
            BLOCK_E=power_of_two(num_experts), BM=tiling.pairs, BN=tiling.rows,
            BG=min(tiling.groups, power_of_two(self.groups)),
            num_warps=_WARPS, num_stages=3, **self.flags, **LAUNCH,
        )  # fmt: skip
        return out


class QuantExperts(StackedExperts):
    """`ops.moe.ExpertMlp` over planes.

    Args:
        gate_up: of all experts, E * 2F rows of `hidden` columns: an expert's gate, then its up.
        down: of all experts, E * hidden rows of F columns.
        num_experts: E.
        silu_and_mul: the gate.
        tilings: of few pairs an expert, and of more.
    """

    def __init__(
        self,
        gate_up: QuantPlanes,
        down: QuantPlanes,
        num_experts: int,
        silu_and_mul: SiluAndMul,
        tilings: QuantMoeTilings = DEFAULT_QUANT_TILINGS,
    ) -> None:
        inner, outer = (_Stack(planes, num_experts, tilings) for planes in (gate_up, down))
        super().__init__(inner, outer, num_experts, silu_and_mul)
