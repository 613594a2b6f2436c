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
from luce.engine.ops.triton.moe import gated, most_tiles, tile_place
from luce.engine.ops.triton.moe_stacked import StackedExperts
from luce.engine.ops.triton.numeric import INTERPRETED, LAUNCH, dot, power_of_two, wait_for_inputs
from luce.engine.ops.triton.quant_activations import quantise_rows
from luce.engine.ops.triton.quant_tile import tile_of_weights
from luce.engine.ops.triton.quant_vector import quant_vector
from luce.engine.ops.triton.quant_words import FormatFlags, load_scales
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import GROUP

_QUANTISE_GROUPS = 16
_VECTOR_ELEMENTS = 512
_VECTOR_GROUPS = 64


@triton.jit
def groups_from(first, num_groups: tl.constexpr, BG: tl.constexpr):
    """BG groups, none of them beyond the last."""
    groups = first + tl.arange(0, BG)
    if num_groups % BG != 0:
        # Only then: the compiler no longer sees neighbours, and sends all through memory.
        groups = tl.minimum(groups, num_groups - 1)
    return groups


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

    Reads x by token and writes silu(gate) * up in sorted order; IS_LAST: reads x in sorted order
    and writes y by pair, weighted.
    """
    wait_for_inputs()
    expert, first, end = tile_place(starts, tl.program_id(1), E, BLOCK_E, BM)
    if expert >= E:
        return
    places = first + tl.arange(0, BM)
    there = places < end
    pairs = tl.load(order + places, mask=there, other=0)
    sources = (places if IS_LAST else pairs // CHOSEN).to(tl.int64)
    OUTS: tl.constexpr = BN if IS_LAST else BN // 2
    outs = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    size = num_rows if IS_LAST else num_rows // 2
    index = tl.program_id(0) * OUTS + tl.arange(0, BN) % OUTS
    # The second half of a tile is the up of the first half's gates.
    rows = expert * num_rows + tl.minimum(index, size - 1) + tl.arange(0, BN) // OUTS * size
    total = tl.zeros((BM, BN), dtype=tl.float32)
    groups = groups_from(0, num_groups, BG)
    scale, block, top = load_scales(
        scales_ptr, blocks_ptr, rows[:, None], groups[None, :], num_groups, SCALE, BG
    )
    for first_group in range(0, num_groups, BG):
        # Scales are read a step ahead by hand, as in `quant_tile`.
        next_groups = groups_from(
            tl.minimum(first_group + BG, (num_groups - 1) // BG * BG), num_groups, BG
        )
        next_scale, next_block, next_top = load_scales(
            scales_ptr, blocks_ptr, rows[:, None], next_groups[None, :], num_groups, SCALE, BG
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
        scale, block, top, groups = next_scale, next_block, next_top, next_groups
    if IS_LAST:
        share = tl.load(weights + pairs, mask=there, other=0.0).to(tl.float32)
        total *= share[:, None]
    targets = (pairs if IS_LAST else places).to(tl.int64)
    target = y + targets[:, None] * size + outs[None, :]
    mask = there[:, None] & (outs < size)[None, :]
    if IS_LAST:
        tl.store(target, total.to(y.dtype.element_ty), mask=mask)
    else:
        halves = tl.permute(tl.reshape(total, (BM, 2, OUTS)), (0, 2, 1))
        gate, up = tl.split(halves)
        tl.store(target, gated(gate, up, y.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True)
class QuantMoeTiling:
    """How products of many pairs are cut.

    Attributes:
        pairs: of a tile, all of one expert.
        rows: of a weight.
        groups: of its columns, read at a time.
        warps: of a program.
    """

    pairs: int
    rows: int
    groups: int
    warps: int = 4


QuantMoeTilings = tuple[QuantMoeTiling, ...]
"""By their pairs: the first is taken that holds as many as an expert has on average."""
# Counted off the compiler, not measured (docs/lab/hybrid.md): 128 rows of a weight need fewer
# instructions a weight than 64, and 128 pairs share what unpacking it takes.
DEFAULT_QUANT_TILINGS: QuantMoeTilings = (QuantMoeTiling(16, 64, 4), QuantMoeTiling(64, 128, 2))
if not torch.version.hip:
    # It spills on gfx1100.
    DEFAULT_QUANT_TILINGS += (QuantMoeTiling(128, 128, 2, warps=8),)


class PlanesOfExperts:
    """A matrix for each expert, in planes, and the kernels' compile-time facts about them.

    Args:
        planes: of all experts.
        num_experts: E.
        tilings: how products of many pairs are cut.
    """

    def __init__(
        self,
        planes: QuantPlanes,
        num_experts: int,
        tilings: QuantMoeTilings = DEFAULT_QUANT_TILINGS,
    ) -> None:
        assert planes.rows % num_experts == 0
        self._tilings = tilings
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
        self.uses_assembly = not INTERPRETED and codes.is_cuda and torch.version.hip is None
        self.flags = {
            "num_groups": self.groups,
            "CODES": flags["codes"],
            "HIGH": flags["high"],
            "ZERO": flags["zero"],
            "TABLE": flags["table"],
            "SIGNED": flags["is_signed"],
            "SCALE": flags["scale"],
            "ASM": self.uses_assembly,
        }

    def codings(self, prefix: str = "") -> dict[str, int | bool | str]:
        """How a kernel is to read them: flags of the format, with a prefix to their names."""
        names = ("CODES", "HIGH", "ZERO", "TABLE", "SIGNED", "SCALE")
        found = {f"{prefix}{name}": self.flags[name] for name in names}
        return {**found, f"{prefix}HAS_OFFSET": self.planes.format.has_offset}

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
            WHOLE=self.rows % rows == 0, num_warps=2, **self.flags, **LAUNCH,
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
        """Tiles of pairs times their expert's matrix; see the kernel: [T * k, rows], or half.

        Before the last product the first half of the rows are gates, and gate the others.
        """
        order, starts = sorted_pairs
        pairs, num_experts = len(order), len(starts) - 1
        fitting = (each for each in self._tilings if pairs <= each.pairs * num_experts)
        tiling = next(fitting, self._tilings[-1])
        out = x.new_empty(pairs, self.rows if is_last else self.rows // 2)
        tiles = most_tiles(pairs, num_experts, tiling.pairs)
        _expert_tile_kernel[(triton.cdiv(self.rows, tiling.rows), tiles)](
            x, out, order, starts, routing.weights, *self.pointers, self.rows,
            E=num_experts, CHOSEN=routing.experts.shape[1], IS_LAST=is_last,
            BLOCK_E=power_of_two(num_experts), BM=tiling.pairs, BN=tiling.rows,
            BG=min(tiling.groups, power_of_two(self.groups)),
            num_warps=tiling.warps, num_stages=3, **self.flags, **LAUNCH,
        )  # fmt: skip
        return out


class QuantExperts(StackedExperts):
    """`ops.moe.ExpertMlp` over planes.

    Args:
        gate_up: of all experts, E * 2F rows of `hidden` columns: an expert's gate, then its up.
        down: of all experts, E * hidden rows of F columns.
        num_experts: E.
        silu_and_mul: the gate.
        tilings: how products of many pairs are cut.
    """

    def __init__(
        self,
        gate_up: QuantPlanes,
        down: QuantPlanes,
        num_experts: int,
        silu_and_mul: SiluAndMul,
        tilings: QuantMoeTilings = DEFAULT_QUANT_TILINGS,
    ) -> None:
        self.inner = PlanesOfExperts(gate_up, num_experts, tilings)
        self.outer = PlanesOfExperts(down, num_experts, tilings)
        super().__init__(self.inner, self.outer, num_experts, silu_and_mul)

    def _gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """The product has done it."""
        return gate_up
