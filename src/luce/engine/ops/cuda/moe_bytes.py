"""`moe_stage.cu`, `moe_inner.cu`, `moe_outer.cu`: a mixture of quantised experts, 5 to 16 tokens.

Tensor cores multiply codes as bytes by x as two bytes; `docs/lab/hybrid.md` has the counts.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import torch

from luce.engine.device import kernel_limits
from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda.quant_operands import SCALES, code_parts, format_constants
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.moe import Router, Routing
from luce.engine.ops.projection import NormWeight
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import BLOCK, GROUP, CodePlane, QuantFormat

PRIMITIVES = ("hopper.cuh", "quant_split_copies.cuh", "moe_primitives.cuh")
_NUMBERS = (*PRIMITIVES, "moe_numbers.cuh")
_FILES = {
    "moe_stage": (*_NUMBERS, "moe_stage.cu"),
    "moe_inner": (*_NUMBERS, "moe_pieces.cuh", "moe_entries.cuh", "moe_inner.cu"),
    "moe_outer": (*_NUMBERS, "moe_pieces.cuh", "moe_entries.cuh", "moe_outer.cu"),
}
MOST_TOKENS = 16
_MOST_CHOSEN = 16
_MOST_EXPERTS = 512
_MOST_UNITS = 1 << 25
_STAGE_WARPS = 8
_INNER_WARPS = 16
_OUTER_WARPS = 16
_WARPS = {"moe_inner": _INNER_WARPS, "moe_outer": _OUTER_WARPS}
_LEAST_PIECES, _MOST_PIECES = 2, 4
_PIECE_ROWS = 16
_STRIP = 8
_TOKEN_GROUP = 80
_GROUP_IMAGE = 96
_ZEROS_BYTES = 1024
_SLOTS = 4


@dataclass(frozen=True, slots=True)
class MixtureShape:
    """What the kernels are made for.

    Attributes:
        experts: E.
        chosen: of a token.
        hidden: columns of gate and up.
        size: of an expert.
        shared_size: of the shared expert; 0 without one.
    """

    experts: int
    chosen: int
    hidden: int
    size: int
    shared_size: int

    @property
    def entry_bytes(self) -> int:
        """Of the list of entries, as `moe_entries.cuh` has it."""
        pairs = MOST_TOKENS * self.chosen
        words = -(-pairs // 32)
        entries = pairs + MOST_TOKENS // _SLOTS
        return entries * 12 + (self.experts + 1) * words * 4


@dataclass(frozen=True, slots=True)
class ByteMixture:
    """Gate and up, and down, of all experts and of the shared one.

    Attributes:
        shape: of it.
        inner: gate | up of each expert, one below the other.
        outer: down of each.
        s_inner: of the shared expert, where there is one.
        s_outer: likewise.
    """

    shape: MixtureShape
    inner: QuantPlanes
    outer: QuantPlanes
    s_inner: QuantPlanes | None
    s_outer: QuantPlanes | None

    def add(
        self, hidden: torch.Tensor, norm: NormWeight, logits: torch.Tensor, router: Router
    ) -> None:
        """hidden += mixture(norm(hidden)).

        Args:
            hidden: bfloat16 [T, K], contiguous, at a multiple of 16 bytes; so is norm's weight.
            norm: of K.
            logits: bfloat16 [T, E], or [T, E + 1] with that of the shared expert's gate.
            router: whose they are.

        Raises:
            RuntimeError: the device does not take the kernels.
        """
        x, routing = self.staged(hidden, norm, logits, router)
        gate = logits[:, self.shape.experts :] if self.shape.shared_size else None
        self.outer_products(hidden, self.inner_products(x, routing), routing, gate)

    def staged(
        self, hidden: torch.Tensor, norm: NormWeight, logits: torch.Tensor, router: Router
    ) -> tuple[torch.Tensor, Routing]:
        """norm(hidden) as `inner_products` takes it, and where its tokens go.

        Args:
            hidden: bfloat16 [T, K], contiguous.
            norm: of K.
            logits: bfloat16 [T, E] or more.
            router: whose they are.

        Raises:
            RuntimeError: the device does not take the kernel.
        """
        tokens, shape = len(hidden), self.shape
        image = torch.empty(
            tokens, shape.hidden // GROUP * _TOKEN_GROUP, dtype=torch.int8, device=hidden.device
        )
        routing = Routing(
            experts=hidden.new_empty(tokens, shape.chosen, dtype=torch.int64),
            weights=hidden.new_empty(tokens, shape.chosen),
        )
        kernel = _compiled_stage(shape, norms=router.norm_weights)
        (eps_bits,) = struct.unpack("i", struct.pack("f", norm.eps))
        kernel(
            (tokens, 1, 1),
            (32 * (_STAGE_WARPS + 1), 1, 1),
            [
                hidden, norm.weight, logits, image, routing.experts, routing.weights,
                router.loads, hidden.stride(0), logits.stride(0), eps_bits,
            ],
        )  # fmt: skip
        return image, routing

    def inner_products(self, x: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, ...]:
        """Images of what `outer_products` takes: of pairs, and of tokens of the shared expert.

        Args:
            x: of `staged`.
            routing: likewise.

        Raises:
            RuntimeError: the device does not take the kernel.
        """
        shape, tokens = self.shape, len(routing.experts)
        image, s_image = (
            torch.empty(count, size // GROUP * _GROUP_IMAGE, dtype=torch.int8, device=x.device)
            for count, size in ((routing.experts.numel(), shape.size), (tokens, shape.shared_size))
        )
        limits, shared = kernel_limits(x.device), self.s_inner or self.inner
        forms = (self.inner.format, shared.format)
        kernel = _compiled("moe_inner", shape, forms, limits.shared_bytes)
        kernel(
            (limits.processors, 1, 1),
            (32 * _INNER_WARPS, 1, 1),
            [
                x, routing.experts, image, s_image,
                *_operands(self.inner), *_operands(shared), tokens, shape.experts,
            ],
        )  # fmt: skip
        return image, s_image

    def outer_products(
        self,
        hidden: torch.Tensor,
        images: tuple[torch.Tensor, ...],
        routing: Routing,
        gate: torch.Tensor | None,
    ) -> None:
        """Add the weighted sums of down's products to hidden.

        Raises:
            RuntimeError: the device does not take the kernel.
        """
        shape, shared = self.shape, self.s_outer or self.outer
        forms = (self.outer.format, shared.format)
        kernel = _compiled("moe_outer", shape, forms, kernel_limits(hidden.device).shared_bytes)
        kernel(
            (shape.hidden // _PIECE_ROWS, 1, 1),
            (32 * _OUTER_WARPS, 1, 1),
            [
                *images, routing.experts, routing.weights,
                hidden if gate is None else gate, hidden,
                *_operands(self.outer), *_operands(shared), len(hidden),
                0 if gate is None else gate.stride(0), shape.experts,
            ],
        )  # fmt: skip


def _operands(planes: QuantPlanes) -> list[torch.Tensor]:
    return [
        planes.codes,
        planes.codes if planes.high is None else planes.high,
        planes.scales,
        planes.scales if planes.blocks is None else planes.blocks,
    ]


def constants(
    name: str, shape: MixtureShape, forms: tuple[QuantFormat, QuantFormat], ring: PieceRing
) -> dict[str, int]:
    """What the text of `moe_inner.cu` or `moe_outer.cu` wants defined.

    The number of experts is told when they run: so they are compiled once for a trial and a model.
    """
    formats: dict[str, int] = {}
    for prefix, form in zip(("R_", "S_"), forms, strict=True):
        for key, value in format_constants(form).items():
            is_kind = key.startswith("SCALE_")
            formats[key if is_kind else prefix + key] = value
        formats[f"{prefix}GROUP_SCALE_BYTES"] = SCALES[form.scale].group_bytes
    return {
        **formats,
        "IS_ONE_FORMAT": int(forms[0] is forms[1]),
        "HAS_SHARED": int(shape.shared_size > 0),
        "CHOSEN": shape.chosen,
        "HIDDEN": shape.hidden,
        "UNITS": shape.hidden // BLOCK,
        "SIZE": shape.size,
        "S_SIZE": shape.shared_size or shape.size,
        "MOST_TOKENS": MOST_TOKENS,
        "MOST_PAIRS": MOST_TOKENS * shape.chosen,
        "WARPS": _WARPS[name],
        "RING": ring.pieces,
        "SLOT_BYTES": ring.slot,
    }


@dataclass(frozen=True, slots=True)
class PieceRing:
    """Pieces of weights that each warp of a kernel has on their way, in shared memory.

    Attributes:
        slot: bytes of a piece, in the larger of both formats.
        pieces: how many.
        nbytes: of all shared memory of a block of threads.
    """

    slot: int
    pieces: int
    nbytes: int

    @classmethod
    def of(
        cls, name: str, shape: MixtureShape, forms: tuple[QuantFormat, QuantFormat], limit: int
    ) -> PieceRing:
        """With as many as there is room for.

        Raises:
            ValueError: there is no room for two.
        """
        fixed = shape.entry_bytes + MOST_TOKENS * (shape.chosen + 1) * _PIECE_ROWS * 4
        if name == "moe_inner":
            rows = MOST_TOKENS * (shape.hidden // GROUP) * _TOKEN_GROUP
            fixed = _ZEROS_BYTES + rows + 16 + shape.entry_bytes
        slot = max(map(_piece_bytes, forms))
        pieces = min(_MOST_PIECES, (limit - fixed) // (_WARPS[name] * slot))
        if pieces < _LEAST_PIECES:
            raise ValueError("there is no room for its columns")
        return cls(slot, pieces, fixed + _WARPS[name] * slot * pieces)


def _piece_bytes(form: QuantFormat) -> int:
    """As `Piece` of `moe_pieces.cuh` has them: codes, their high bits, scales, blocks."""
    low, high = code_parts(form)
    scales = SCALES[form.scale]
    return 2048 * low + 512 * high + 128 * scales.group_bytes + 64 * (scales.block_bytes > 0)


@functools.cache
def _compiled_stage(shape: MixtureShape, *, norms: bool) -> DeviceKernel:
    text = {
        "EXPERTS": shape.experts,
        "CHOSEN": shape.chosen,
        "HIDDEN": shape.hidden,
        "UNITS": shape.hidden // BLOCK,
        "WARPS": _STAGE_WARPS,
        "NORM_WEIGHTS": int(norms),
    }
    launch = KernelLaunch(4 * _STAGE_WARPS, is_early=True)
    return compiled_kernel("moe_stage", _FILES["moe_stage"], text, launch)


@functools.cache
def _compiled(
    name: str, shape: MixtureShape, forms: tuple[QuantFormat, QuantFormat], limit: int
) -> DeviceKernel:
    ring = PieceRing.of(name, shape, forms, limit)
    launch = KernelLaunch(ring.nbytes, is_early=True)
    return compiled_kernel(name, _FILES[name], constants(name, shape, forms, ring), launch)


def refusal(mixture: ByteMixture, device: torch.device) -> str | None:
    """Why the kernels are not made for a mixture, or None."""
    shape, planes = mixture.shape, (mixture.inner, mixture.s_inner, mixture.outer, mixture.s_outer)
    if shape.chosen > _MOST_CHOSEN or shape.experts > _MOST_EXPERTS:
        return "made for fewer experts"
    if any(size % BLOCK for size in (shape.hidden, shape.size, shape.shared_size)):
        return f"made for sizes in whole blocks of {BLOCK}"
    for each in planes:
        if each is None:
            continue
        if each.format.scale not in SCALES or each.format.codes is CodePlane.TWO:
            return f"not made for {each.format.name}"
        if each.rows * (each.columns // BLOCK) > _MOST_UNITS:
            return "made for smaller matrices"
    limit = kernel_limits(device).shared_bytes
    try:
        for name, routed, shared in (("moe_inner", *planes[:2]), ("moe_outer", *planes[2:])):
            assert routed is not None
            PieceRing.of(name, shape, (routed.format, (shared or routed).format), limit)
    except ValueError as error:
        return str(error)
    return None
