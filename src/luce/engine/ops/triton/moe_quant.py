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
from luce.engine.ops.triton.moe import FEW_TOKENS, combine, most_tiles, tile_place
from luce.engine.ops.triton.moe_route import sort_pairs
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


@triton.jit
def _weigh_kernel(
    parts, weights, out, CHOSEN: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr
):
    """Program (token, columns): the weighted sum of its pairs' float32 results."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(CHOSEN):
        pair = token * CHOSEN + choice
        part = tl.load(parts + pair * HIDDEN + columns, mask=inside, other=0.0)
        total += part * tl.load(weights + pair).to(tl.float32)
    tl.store(out + token * HIDDEN + columns, total.to(out.dtype.element_ty), mask=inside)


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


SMALL_QUANT_TILING = QuantMoeTiling(16, 64, 4)
LARGE_QUANT_TILING = QuantMoeTiling(64, 64, 4)


class _Stack:
    """A matrix for each expert, in planes, and the kernels' compile-time facts about them."""

    def __init__(self, planes: QuantPlanes, num_experts: int) -> None:
        assert planes.rows % num_experts == 0
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

    def by_pair(self, x: torch.Tensor, experts: torch.Tensor, chosen: int) -> torch.Tensor:
        """Rows of x, each for `chosen` experts, times theirs: f32 or x's type [T * k, rows]."""
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
        tiling: QuantMoeTiling,
        *,
        is_last: bool,
    ) -> torch.Tensor:
        """Tiles of pairs times their expert's matrix; see the kernel: [T * k, rows]."""
        order, starts = sorted_pairs
        pairs, num_experts = len(order), len(starts) - 1
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


class QuantExperts:
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
        tilings: tuple[QuantMoeTiling, QuantMoeTiling] = (SMALL_QUANT_TILING, LARGE_QUANT_TILING),
    ) -> None:
        self._num_experts = num_experts
        self._gate_up, self._down = _Stack(gate_up, num_experts), _Stack(down, num_experts)
        self._silu_and_mul = silu_and_mul
        self._small, self._large = tilings

    def __call__(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """[T, hidden] → [T, hidden]."""
        if len(x) <= FEW_TOKENS:
            return self._by_pair(x, routing)
        return self._by_expert(x, routing)

    def _by_pair(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        tokens, chosen = routing.experts.shape
        inner = self._silu_and_mul(self._gate_up.by_pair(x, routing.experts, chosen))
        parts = self._down.by_pair(inner, routing.experts, 1)
        hidden = self._down.rows
        out = x.new_empty(tokens, hidden)
        block = min(1024, power_of_two(hidden))
        _weigh_kernel[(tokens, triton.cdiv(hidden, block))](
            parts, routing.weights, out, CHOSEN=chosen, HIDDEN=hidden, BLOCK=block, num_warps=4,
            **LAUNCH,
        )  # fmt: skip
        return out

    def _by_expert(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        pairs, chosen = routing.experts.numel(), routing.experts.shape[1]
        sorted_pairs = sort_pairs(routing.experts, self._num_experts)
        is_small = pairs <= self._small.pairs * self._num_experts
        tiling = self._small if is_small else self._large
        gate_up = self._gate_up.by_expert(x, sorted_pairs, routing, tiling, is_last=False)
        inner = self._silu_and_mul(gate_up)
        parts = self._down.by_expert(inner, sorted_pairs, routing, tiling, is_last=True)
        return combine(parts, chosen)

    @property
    def nbytes(self) -> int:
        """Memory of the planes."""
        return self._gate_up.planes.nbytes + self._down.planes.nbytes
