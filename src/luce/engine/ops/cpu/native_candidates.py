"""Native operations as candidates, and why they may not serve."""

from __future__ import annotations

from collections.abc import Callable

import torch

from luce.engine.native.library import native_library
from luce.engine.ops.attention import PagedAttention
from luce.engine.ops.candidates import (
    Candidate,
    OpChoice,
    OpRequest,
    choose,
    never,
    unless_cpu_float32,
)
from luce.engine.ops.cpu.native import (
    NativeAttention,
    NativeGatedProduct,
    NativeOps,
    NativePlaceQkv,
    NativeProduct,
    cache_refusal,
)
from luce.engine.ops.cpu.native_gates import NativeRmsNorm
from luce.engine.ops.cpu.native_layer_candidates import mixed_product
from luce.engine.ops.pointwise import RmsNorm
from luce.engine.ops.projection import NormedProduct
from luce.engine.ops.qkv import PlaceQkv

_NAME = "native"


def choose_native(request: OpRequest) -> tuple[NativeOps | None, OpChoice]:
    """The library's operations where it can be used; the tape they share is theirs."""
    candidates: list[Candidate[Callable[[], NativeOps | None]]] = [
        Candidate(_NAME, _load, _refusal),
        Candidate("none", lambda: None, never),
    ]
    load, choice = choose("native", candidates, request)
    return load(), choice


def _refusal(request: OpRequest) -> str | None:
    reason = unless_cpu_float32(request)
    if reason is not None:
        return reason
    if request.exact:
        return "activations are not to be rounded"
    library = native_library()
    return library if isinstance(library, str) else None


def _load() -> NativeOps:
    library = native_library()
    assert not isinstance(library, str)
    library.use_threads(torch.get_num_threads())
    return NativeOps(library)


def native_rms_norm(native: NativeOps | None) -> list[Candidate[RmsNorm]]:
    """Norm."""
    return [] if native is None else [Candidate(_NAME, NativeRmsNorm(native.tape), never)]


def native_attention(
    native: NativeOps | None, request: OpRequest
) -> list[Candidate[PagedAttention]]:
    """Attention over a cache in the layout of `native_place_qkv`."""
    if native is None:
        return []
    return [Candidate(_NAME, NativeAttention(native.tape, request.heads), _cache_refusal)]


def native_place_qkv(native: NativeOps | None, request: OpRequest) -> list[Candidate[PlaceQkv]]:
    """Writes the cache that `native_attention` reads: one is never chosen without the other."""
    if native is None:
        return []
    place = NativePlaceQkv(native.tape, request.interleaved_rope)
    return [Candidate(_NAME, place, _cache_refusal)]


def _cache_refusal(request: OpRequest) -> str | None:
    return cache_refusal(request.heads, request.block_tokens)


def native_products(
    native: NativeOps | None, product: NormedProduct, gated_product: NormedProduct
) -> list[Candidate[tuple[NormedProduct, NormedProduct]]]:
    """Products of tiles; those of other linears stay with what is given."""
    if native is None:
        return []
    gated = NativeGatedProduct(gated_product)
    products = (mixed_product(native, NativeProduct(product)), gated)
    return [Candidate(_NAME, products, never)]
