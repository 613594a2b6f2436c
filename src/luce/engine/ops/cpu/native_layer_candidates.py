"""Native operations of hybrids and mixtures as candidates."""

from __future__ import annotations

from luce.engine.ops.candidates import Candidate, OpRequest, never
from luce.engine.ops.cpu.native import NativeOps
from luce.engine.ops.cpu.native_delta import NativeGatedDelta
from luce.engine.ops.cpu.native_gates import (
    NativeGatedHeads,
    NativeRmsNorm,
    NativeSiluAndMul,
    heads_refusal,
)
from luce.engine.ops.cpu.native_moe import NativeAddMixture, NativeRoute
from luce.engine.ops.cpu.native_plain import MixedProduct
from luce.engine.ops.gated_delta import GatedDelta
from luce.engine.ops.gated_heads import GatedHeads
from luce.engine.ops.moe import AddMixture, ExpertPacker, Route
from luce.engine.ops.pointwise import SiluAndMul
from luce.engine.ops.projection import NormedProduct

_NAME = "native"


def native_gated_delta(
    native: NativeOps | None, otherwise: GatedDelta
) -> list[Candidate[GatedDelta]]:
    """The recurrence."""
    if native is None:
        return []
    return [Candidate(_NAME, NativeGatedDelta(native.tape, otherwise), never)]


def native_gated_heads(native: NativeOps | None) -> list[Candidate[GatedHeads]]:
    """Gates of attention."""
    if native is None:
        return []
    return [Candidate(_NAME, NativeGatedHeads(native.tape), _heads_refusal)]


def _heads_refusal(request: OpRequest) -> str | None:
    return heads_refusal(request.heads)


def native_silu_and_mul(
    native: NativeOps | None, otherwise: SiluAndMul
) -> list[Candidate[SiluAndMul]]:
    """The gate of a SwiGLU block whose product is none with a gate."""
    if native is None:
        return []
    return [Candidate(_NAME, NativeSiluAndMul(native.tape, otherwise), never)]


def native_mixture(
    native: NativeOps | None, otherwise: tuple[Route, ExpertPacker, AddMixture]
) -> list[Candidate[tuple[Route, ExpertPacker, AddMixture]]]:
    """Choice and sum; experts whose types have no kernels are packed as otherwise."""
    if native is None:
        return []
    route, packer, add = otherwise
    mixture = (
        NativeRoute(native.tape, route),
        packer,
        NativeAddMixture(native.tape, add),
    )
    return [Candidate(_NAME, mixture, never)]


def mixed_product(native: NativeOps, product: NormedProduct) -> NormedProduct:
    """Norm and product, where some matrices are plain; other linears go to `product`."""
    return MixedProduct(NativeRmsNorm(native.tape), product)
