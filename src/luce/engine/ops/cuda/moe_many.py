"""`moe_many.cu`, `moe_many_sum.cu`: a mixture of quantised experts of 5 to 16 tokens.

One block of threads for each multiprocessor gets a part of all rows that the tokens' experts have,
by bulk copies of whole rows, each read once for up to four of an expert's tokens.
`docs/lab/hybrid.md` has the counts.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import torch

from luce.engine.device import kernel_limits
from luce.engine.device_kernel import (
    DeviceKernel,
    KernelLaunch,
    KernelLimits,
    are_processors_shared,
)
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import Router
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import GROUP

PRIMITIVES = ("hopper.cuh", "quant_split_copies.cuh", "moe_many_primitives.cuh")
_FILES = (
    *PRIMITIVES,
    "moe_many_codes.cuh",
    "moe_many_work.cuh",
    "moe_many_ring.cuh",
    "moe_many_gate.cuh",
    "moe_many_down.cuh",
    "moe_many.cu",
)
_STAGE_FILES = (*PRIMITIVES, "moe_many_codes.cuh", "moe_many_stage.cu")
_SUM_FILES = (*PRIMITIVES, "moe_many_codes.cuh", "moe_many_sum.cu")
MOST_TOKENS = 16
_TYPE = "Q4_K"
_UNIT_COLUMNS = 16384
"""Of all rows of a unit, and of down at most."""
_LANE_COLUMNS = 1024
_LEAST_UNITS = 4
"""On their way."""
_SLOTS = 4
"""Lines of an entry."""
_GROUP_BYTES = 72
"""Of a row of x: words, a scale and a sum."""
_STAGE_WARPS = 8
_STAGE_LOGITS = 8
"""Of a block of threads."""
_LINE_BYTES = 256
"""Pairs, and tokens behind them, that a byte can number."""
_SUM_THREADS, _SUM_COLUMNS = 128, 4
_WIDTHS, _SIZES = (1024, 2048, 4096), (256, 512, 1024)
_MOST_EXPERTS = 512


@dataclass(frozen=True, slots=True)
class ManyTiling:
    """How a kernel works.

    Attributes:
        warps: that multiply; one more copies.
        slots: most of the ring.
        cost_unit: of the work of a unit.
        cost_token: more for each of its tokens.
    """

    warps: int = 7
    slots: int = 8
    cost_unit: int = 1
    cost_token: int = 1


@dataclass(frozen=True, slots=True)
class MixtureShape:
    """What the kernels are made for.

    Attributes:
        experts: E.
        chosen: of a token.
        hidden: columns of gate and up.
        size: of an expert, and of the shared one.
        has_shared: whether there is one.
    """

    experts: int
    chosen: int
    hidden: int
    size: int
    has_shared: bool

    @property
    def each(self) -> int:
        """Rows of results of a token."""
        return self.chosen + self.has_shared

    @property
    def work_bytes(self) -> int:
        """As `Work` of `moe_many_work.cuh` has them."""
        pairs = MOST_TOKENS * self.chosen
        entries = pairs + self.has_shared * (MOST_TOKENS // _SLOTS)
        return entries * 16 + (self.experts + 1) * -(-pairs // 32) * 4 + 2 * 16

    def x_rows(self, processors: int, tiling: ManyTiling) -> int:
        """Rows that the second kernel has room for: lines of a block's entries at most."""
        pairs = MOST_TOKENS * self.chosen
        entries = pairs + self.has_shared * (MOST_TOKENS // _SLOTS)
        most = tiling.cost_unit * entries + tiling.cost_token * (pairs + MOST_TOKENS)
        whole = most // processors // (tiling.cost_unit + tiling.cost_token)
        return _SLOTS * min(entries, whole + 2)


@dataclass(frozen=True, slots=True)
class ManyMixture:
    """Gate and up, and down, of all experts and of the shared one.

    Attributes:
        num_experts: E.
        inner: gate | up of each expert, one below the other.
        outer: down of each.
        s_inner: of the shared expert, where there is one.
        s_outer: likewise.
        arrivals: i32 of each multiprocessor, 0 between calls.
        tiling: of the kernel.
    """

    num_experts: int
    inner: QuantPlanes
    outer: QuantPlanes
    s_inner: QuantPlanes | None
    s_outer: QuantPlanes | None
    arrivals: torch.Tensor
    tiling: ManyTiling = ManyTiling()

    def shape(self, router: Router) -> MixtureShape:
        """Of it."""
        return MixtureShape(
            self.num_experts,
            router.num_chosen,
            self.inner.columns,
            self.outer.columns,
            self.s_inner is not None,
        )

    def refusal(self, router: Router) -> str | None:
        """Why the kernels are not made for such a router and this device, or None."""
        if are_processors_shared():
            return "its blocks wait for each other, which may be for ever under CUDA MPS"
        planes, shape = (self.inner, self.outer, self.s_inner, self.s_outer), self.shape(router)
        if any(each is not None and each.format.name != _TYPE for each in planes):
            return f"made for {_TYPE}"
        if shape.hidden not in _WIDTHS or shape.size not in _SIZES:
            return "made for other sizes"
        if self.s_outer is not None and self.s_outer.columns != shape.size:
            return "made for shared experts as large as the others"
        if shape.experts % 64 or shape.experts > _MOST_EXPERTS:
            return "made for other numbers of experts"
        if not _is_plain(router.gate):
            return "made for routers in contiguous bfloat16"
        if MOST_TOKENS * shape.each > _LINE_BYTES or MOST_TOKENS * shape.chosen > self.threads:
            return "made for fewer experts of a token"
        room = _Memory.of(shape, self.tiling, kernel_limits(self.arrivals.device)).slots
        return None if room >= _LEAST_UNITS else "there is no room for its columns"

    @property
    def threads(self) -> int:
        """Of a block: those that multiply, and those that copy."""
        return 32 * (self.tiling.warps + 1)

    def add(self, hidden: torch.Tensor, norm: NormWeight, router: Router) -> torch.Tensor:
        """hidden + mixture(norm(hidden)), in place.

        Args:
            hidden: bfloat16 [T, K], contiguous.
            norm: of K, in bfloat16.
            router: whose gate `refusal` accepts; its loads are counted up.

        Raises:
            RuntimeError: the device does not take the kernels.
        """
        shape, tokens = self.shape(router), len(hidden)
        lines = tokens * shape.each
        words, logits = self._staged(hidden, norm, router)
        routing, gate = router.choose_by(logits)
        inner, results = (
            torch.empty(lines, width, dtype=torch.float32, device=hidden.device)
            for width in (shape.size, shape.hidden)
        )
        shared, s_outer = self.s_inner or self.inner, self.s_outer or self.outer
        planes = self.inner, shared, self.outer, s_outer
        _compiled(shape, self.tiling, hidden.device)(
            (len(self.arrivals), 1, 1), (self.threads, 1, 1),
            [
                words, routing.experts.contiguous(), inner, results, self.arrivals,
                *(part for each in planes for part in _operands(each)),
                tokens,
            ],
        )  # fmt: skip
        _compiled_sum(shape, hidden.device)(
            (-(-shape.hidden // (_SUM_THREADS * _SUM_COLUMNS)), tokens, 1), (_SUM_THREADS, 1, 1),
            [
                results, routing.weights.contiguous(), logits if gate is None else gate, hidden,
                self.arrivals, len(self.arrivals), logits.stride(0), tokens,
            ],
        )  # fmt: skip
        return hidden

    def _staged(
        self, hidden: torch.Tensor, norm: NormWeight, router: Router
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised rows as the kernel takes them, and their logits."""
        assert isinstance(router.gate, DeviceLinear)
        (tokens, size), weight = hidden.shape, router.gate.weight
        num_logits = len(weight)
        words = hidden.new_empty(tokens, size // GROUP * _GROUP_BYTES, dtype=torch.int8)
        logits = hidden.new_empty(tokens, -(-num_logits // 8) * 8)
        (eps_bits,) = struct.unpack("i", struct.pack("f", norm.eps))
        _compiled_stage(size, num_logits, hidden.device)(
            (-(-num_logits // _STAGE_LOGITS) + tokens, 1, 1), (32 * _STAGE_WARPS, 1, 1),
            [hidden, norm.weight, weight, words, logits, eps_bits, logits.stride(0), tokens],
        )  # fmt: skip
        return words, logits[:, :num_logits]


def _is_plain(gate: Linear) -> bool:
    if not isinstance(gate, DeviceLinear) or gate.bias is not None:
        return False
    weight = gate.weight
    is_aligned = weight.is_contiguous() and weight.data_ptr() % 16 == 0
    return is_aligned and weight.dtype == torch.bfloat16


def _operands(planes: QuantPlanes) -> list[object]:
    assert planes.blocks is not None
    return [planes.codes, planes.scales, planes.blocks]


def constants(shape: MixtureShape, tiling: ManyTiling) -> dict[str, int]:
    """What the texts want defined."""
    return {
        "EXPERTS": shape.experts,
        "CHOSEN": shape.chosen,
        "HIDDEN": shape.hidden,
        "SIZE": shape.size,
        "HAS_SHARED": int(shape.has_shared),
        "MOST_TOKENS": MOST_TOKENS,
        "WARPS": tiling.warps,
        "ALL_THREADS": 32 * (tiling.warps + 1),
        "COST_UNIT": tiling.cost_unit,
        "COST_TOKEN": tiling.cost_token,
    }


@dataclass(frozen=True, slots=True)
class _Memory:
    """Shared memory of a block of threads.

    Attributes:
        slots: units of the ring.
        slot: bytes of one.
        x_rows: of what down multiplies.
        nbytes: all.
    """

    slots: int
    slot: int
    x_rows: int
    nbytes: int

    @classmethod
    def of(cls, shape: MixtureShape, tiling: ManyTiling, limits: KernelLimits) -> _Memory:
        """With as many slots as there is room for."""
        slot = _UNIT_COLUMNS // 2 + _UNIT_COLUMNS // 16 + _UNIT_COLUMNS // 64
        x_rows = shape.x_rows(limits.processors, tiling)
        rows = (MOST_TOKENS * shape.hidden + x_rows * shape.size) // GROUP * _GROUP_BYTES
        fixed = rows + 16 + shape.work_bytes + 16
        slots = min(tiling.slots, (limits.shared_bytes - fixed) // (slot + 32))
        return cls(slots, slot, x_rows, fixed + slots * (slot + 32))


@functools.cache
def _compiled(shape: MixtureShape, tiling: ManyTiling, device: torch.device) -> DeviceKernel:
    memory = _Memory.of(shape, tiling, kernel_limits(device))
    text = {
        **constants(shape, tiling),
        "SLOTS": memory.slots,
        "SLOT_BYTES": memory.slot,
        "X_ROWS": memory.x_rows,
    }
    launch = KernelLaunch(memory.nbytes, is_early=True)
    return compiled_kernel("moe_many", _FILES, text, launch)


@functools.cache
def _compiled_stage(size: int, num_logits: int, _device: torch.device) -> DeviceKernel:
    text = {"HIDDEN": size, "LOGITS": num_logits, "WARPS": _STAGE_WARPS}
    launch = KernelLaunch(4 * _STAGE_WARPS * (128 + 16), is_early=True)
    return compiled_kernel("moe_many_stage", _STAGE_FILES, text, launch)


@functools.cache
def _compiled_sum(shape: MixtureShape, _device: torch.device) -> DeviceKernel:
    text = {
        "CHOSEN": shape.chosen,
        "HIDDEN": shape.hidden,
        "HAS_SHARED": int(shape.has_shared),
        "ALL_THREADS": _SUM_THREADS,
    }
    launch = KernelLaunch(0, is_early=True)
    return compiled_kernel("moe_many_sum", _SUM_FILES, text, launch)
