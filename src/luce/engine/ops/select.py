"""Chooses the implementation of each operation at load, and records why.

Candidates stand in order of preference; the first whose `refusal` finds nothing against it is
taken. The last one of each list is the reference, which never refuses.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from luce.engine.ops.attention import HeadShape, PagedAttention
from luce.engine.ops.cpu import attention as cpu_attention
from luce.engine.ops.cpu import linear as cpu_linear
from luce.engine.ops.cpu import pointwise as cpu_pointwise
from luce.engine.ops.linear import LinearPacker
from luce.engine.ops.pointwise import RmsNorm, Rotate, SiluAndMul, StoreKV
from luce.engine.ops.projection import NormedProduct
from luce.engine.ops.qkv import PlaceQkv
from luce.engine.ops.ref import attention as ref_attention
from luce.engine.ops.ref import linear as ref_linear
from luce.engine.ops.ref import pointwise as ref_pointwise
from luce.engine.ops.ref.projection import StepwiseGatedProduct, StepwiseProduct
from luce.engine.ops.ref.qkv import StepwisePlaceQkv

T = TypeVar("T")
TRITON = "triton"
_MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class OpRequest:
    """What the operations will be used for.

    Attributes:
        device: where.
        dtype: of activations and weights.
        heads: geometry of attention.
        interleaved_rope: rotary pairs are neighbours (2i, 2i+1) instead of halves (i, i+D/2).
        lanes: most sequences of a step that have one query; sizes a GPU's scratch memory.
        max_ctx: longest context in tokens; likewise.
    """

    device: torch.device
    dtype: torch.dtype
    heads: HeadShape
    interleaved_rope: bool
    lanes: int = 1
    max_ctx: int = 1


@dataclass(frozen=True, slots=True)
class Candidate(Generic[T]):
    """One implementation.

    Attributes:
        name: as recorded.
        implementation: what is used.
        refusal: why it cannot serve a request, or None.
    """

    name: str
    implementation: T
    refusal: Callable[[OpRequest], str | None]


@dataclass(frozen=True, slots=True)
class OpChoice:
    """What was chosen for an operation, and what was not, with the reasons."""

    op: str
    chosen: str
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class OpSet:
    """The implementations a model runs on."""

    pack_linear: LinearPacker
    rms_norm: RmsNorm
    rotate: Rotate
    silu_and_mul: SiluAndMul
    store_kv: StoreKV
    place_qkv: PlaceQkv
    product: NormedProduct
    gated_product: NormedProduct
    attention: PagedAttention
    choices: tuple[OpChoice, ...]

    @property
    def is_on_device(self) -> bool:
        """Whether attention reads its batch from the device: a whole step can stay there."""
        return any(each.op == "attention" and each.chosen == TRITON for each in self.choices)


def choose(op: str, candidates: list[Candidate[T]], request: OpRequest) -> tuple[T, OpChoice]:
    """The first candidate that serves the request."""
    refused: list[tuple[str, str]] = []
    for candidate in candidates:
        reason = candidate.refusal(request)
        if reason is None:
            return candidate.implementation, OpChoice(op, candidate.name, tuple(refused))
        refused.append((candidate.name, reason))
    raise AssertionError(f"no candidate serves {op}: {refused}")


def _never(request: OpRequest) -> str | None:
    del request
    return None


def _unless_cpu(request: OpRequest) -> str | None:
    return None if request.device.type == "cpu" else "made for a CPU"


def _unless_cpu_float32(request: OpRequest) -> str | None:
    if request.dtype != torch.float32:
        return "made for float32"
    return _unless_cpu(request)


def _unless_onednn(request: OpRequest) -> str | None:
    return _unless_cpu_float32(request) or cpu_linear.refusal()


def _triton_refusal(request: OpRequest) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if request.heads.head_dim % 2 or request.heads.head_dim > _MAX_HEAD_DIM:
        return f"made for even head sizes up to {_MAX_HEAD_DIM}"
    return None


def _on_gpu(request: OpRequest, load: Callable[[], T]) -> list[Candidate[T]]:
    """The kernel of a GPU, first in its list; nothing of Triton is imported elsewhere."""
    if request.device.type != "cuda":
        return []
    reason = _triton_refusal(request)
    if reason is not None:
        return [Candidate(TRITON, _refused, lambda _: reason)]  # type: ignore[arg-type]
    return [Candidate(TRITON, load(), _never)]


def _refused() -> None:
    raise AssertionError("a candidate that refused was used")


def _triton_linear() -> LinearPacker:
    from luce.engine.ops.triton.linear import DeviceLinear

    return DeviceLinear


def _triton_rms_norm() -> RmsNorm:
    from luce.engine.ops.triton.rms_norm import rms_norm

    return rms_norm


def _triton_silu_and_mul() -> SiluAndMul:
    from luce.engine.ops.triton.gated_mlp import silu_and_mul

    return silu_and_mul


def _triton_place_qkv(request: OpRequest) -> PlaceQkv:
    from luce.engine.ops.triton.place_qkv import FusedPlaceQkv

    return FusedPlaceQkv(request.interleaved_rope)


def _triton_products(
    product: NormedProduct, gated_product: NormedProduct
) -> tuple[NormedProduct, NormedProduct]:
    from luce.engine.ops.triton.projection import FusedProduct

    return FusedProduct(product, gated=False), FusedProduct(gated_product, gated=True)


def _triton_attention(request: OpRequest) -> PagedAttention:
    from luce.engine.ops.triton.paged_attention import TritonAttention

    return TritonAttention(request.heads, request.lanes, request.max_ctx, request.device)


def _linear_candidates(request: OpRequest) -> list[Candidate[LinearPacker]]:
    return [
        *_on_gpu(request, _triton_linear),
        Candidate("onednn", cpu_linear.PackedLinear, _unless_onednn),
        Candidate("ref", ref_linear.PlainLinear, _never),
    ]


def _rms_norm_candidates(request: OpRequest) -> list[Candidate[RmsNorm]]:
    return [
        *_on_gpu(request, _triton_rms_norm),
        Candidate("cpu", cpu_pointwise.rms_norm, _unless_cpu_float32),
        Candidate("ref", ref_pointwise.rms_norm, _never),
    ]


def _rotate_candidates(*, interleaved: bool) -> list[Candidate[Rotate]]:
    fast = cpu_pointwise.rotate_interleaved if interleaved else cpu_pointwise.rotate_half
    plain = ref_pointwise.rotate_interleaved if interleaved else ref_pointwise.rotate_half
    return [Candidate("cpu", fast, _unless_cpu_float32), Candidate("ref", plain, _never)]


def _attention_candidates(request: OpRequest) -> list[Candidate[PagedAttention]]:
    grouped = cpu_attention.GroupedAttention(request.heads, request.dtype)
    plain = ref_attention.ReferenceAttention(request.heads)
    return [
        *_on_gpu(request, lambda: _triton_attention(request)),
        Candidate("cpu_grouped", grouped, _unless_cpu),
        Candidate("ref", plain, _never),
    ]


def select_ops(request: OpRequest) -> OpSet:
    """Choose every operation of a model."""
    pack_linear, linear_choice = choose("linear", _linear_candidates(request), request)
    rms_norm, norm_choice = choose("rms_norm", _rms_norm_candidates(request), request)
    rotate, rotate_choice = choose(
        "rotate", _rotate_candidates(interleaved=request.interleaved_rope), request
    )
    attention, attention_choice = choose("attention", _attention_candidates(request), request)
    # Made of the operations above, or in one with what stands around them.
    stepwise: PlaceQkv = StepwisePlaceQkv(rms_norm, rotate, ref_pointwise.store_kv)
    place_qkv, _ = choose(
        "place_qkv",
        [
            *_on_gpu(request, lambda: _triton_place_qkv(request)),
            Candidate("stepwise", stepwise, _never),
        ],
        request,
    )
    silu_and_mul, _ = choose(
        "silu_and_mul",
        [
            *_on_gpu(request, _triton_silu_and_mul),
            Candidate("ref", ref_pointwise.silu_and_mul, _never),
        ],
        request,
    )
    product: NormedProduct = StepwiseProduct(rms_norm)
    gated_product: NormedProduct = StepwiseGatedProduct(rms_norm, silu_and_mul)
    products, _ = choose(
        "product",
        [
            *_on_gpu(request, lambda: _triton_products(product, gated_product)),
            Candidate("stepwise", (product, gated_product), _never),
        ],
        request,
    )
    return OpSet(
        pack_linear=pack_linear,
        rms_norm=rms_norm,
        rotate=rotate,
        silu_and_mul=silu_and_mul,
        store_kv=ref_pointwise.store_kv,
        place_qkv=place_qkv,
        product=products[0],
        gated_product=products[1],
        attention=attention,
        choices=(linear_choice, norm_choice, rotate_choice, attention_choice),
    )
