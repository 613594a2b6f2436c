"""Chooses the implementation of each operation at load, and records why.

Candidates stand in order of preference; the first whose `refusal` finds nothing against it is
taken. The last one of each list is the reference, which never refuses.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from luce.engine.device import kernel_refusal
from luce.engine.ops.attention import PagedAttention
from luce.engine.ops.candidates import (
    Candidate,
    OpChoice,
    OpRequest,
    choose,
    never,
    unless_cpu,
    unless_cpu_float32,
)
from luce.engine.ops.cpu import attention as cpu_attention
from luce.engine.ops.cpu import linear as cpu_linear
from luce.engine.ops.cpu import pointwise as cpu_pointwise
from luce.engine.ops.cpu.native import NativeOps
from luce.engine.ops.cpu.native_candidates import (
    choose_native,
    native_attention,
    native_place_qkv,
    native_products,
    native_rms_norm,
)
from luce.engine.ops.cpu.native_layer_candidates import (
    native_gated_delta,
    native_gated_heads,
    native_mixture,
    native_silu_and_mul,
)
from luce.engine.ops.fp8_matmul import Fp8Ops
from luce.engine.ops.gated_delta import GatedDelta
from luce.engine.ops.gated_heads import GatedHeads
from luce.engine.ops.linear import LinearPacker
from luce.engine.ops.moe import AddMixture, ExpertPacker, Route
from luce.engine.ops.pointwise import RmsNorm, Rotate, SiluAndMul, StoreKV
from luce.engine.ops.projection import NormedProduct
from luce.engine.ops.qkv import PlaceQkv
from luce.engine.ops.quant_matmul import QuantOps
from luce.engine.ops.ref import attention as ref_attention
from luce.engine.ops.ref import fp8_matmul as ref_fp8
from luce.engine.ops.ref import gated_delta as ref_gated_delta
from luce.engine.ops.ref import linear as ref_linear
from luce.engine.ops.ref import moe as ref_moe
from luce.engine.ops.ref import pointwise as ref_pointwise
from luce.engine.ops.ref import quant_matmul as ref_quant
from luce.engine.ops.ref.gated_heads import ReferenceGatedHeads
from luce.engine.ops.ref.projection import StepwiseGatedProduct, StepwiseProduct
from luce.engine.ops.ref.qkv import StepwisePlaceQkv

T = TypeVar("T")
_Mixture = tuple[Route, ExpertPacker, AddMixture]
TRITON = "triton"
_MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class OpSet:
    """The implementations a model runs on.

    Without `quantised` and `fp8` ones weights are decoded at load.

    `native`, where it is there, is asked first.
    """

    pack_linear: LinearPacker
    native: NativeOps | None
    quantised: QuantOps | None
    fp8: Fp8Ops | None
    rms_norm: RmsNorm
    rotate: Rotate
    silu_and_mul: SiluAndMul
    store_kv: StoreKV
    place_qkv: PlaceQkv
    product: NormedProduct
    gated_product: NormedProduct
    attention: PagedAttention
    gated_delta: GatedDelta
    gated_heads: GatedHeads
    route: Route
    pack_experts: ExpertPacker
    add_mixture: AddMixture
    choices: tuple[OpChoice, ...]

    @property
    def is_on_device(self) -> bool:
        """Whether attention reads its batch from the device: a whole step can stay there."""
        return any(each.op == "attention" and each.chosen == TRITON for each in self.choices)


def _if_cpu(request: OpRequest) -> str | None:
    return "a CPU computes faster with decoded weights" if request.device.type == "cpu" else None


def _unless_onednn(request: OpRequest) -> str | None:
    return unless_cpu_float32(request) or cpu_linear.refusal()


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
    return [Candidate(TRITON, load(), never)]


def _refused() -> None:
    raise AssertionError("a candidate that refused was used")


def _triton_linear() -> LinearPacker:
    from luce.engine.ops.cuda.rows_products import RowsProducts
    from luce.engine.ops.triton.linear import DeviceLinear

    return partial(DeviceLinear, rows=RowsProducts())


def _triton_quantised() -> QuantOps | None:
    from luce.engine.ops.triton.moe_fuse import few_tokens
    from luce.engine.ops.triton.moe_quant import QuantExperts
    from luce.engine.ops.triton.quant_embedding import quant_lookup
    from luce.engine.ops.triton.quant_linear import TritonQuantLinear

    return QuantOps(TritonQuantLinear, quant_lookup, QuantExperts, few_tokens)


def _cuda_quantised() -> QuantOps | None:
    from luce.engine.ops.cuda.quant_products import QuantProducts
    from luce.engine.ops.triton.quant_linear import TritonQuantLinear

    ops = _triton_quantised()
    assert ops is not None
    return replace(ops, pack_linear=partial(TritonQuantLinear, mma=QuantProducts()))


def _triton_fp8() -> Fp8Ops | None:
    from luce.engine.ops.triton import fp8_linear, moe_fp8

    linear, experts = fp8_linear.DEFAULT_TILINGS, moe_fp8.DEFAULT_TILINGS
    if torch.version.hip:
        linear, experts = fp8_linear.HIP_TILINGS, moe_fp8.HIP_TILINGS
    return Fp8Ops(
        partial(fp8_linear.TritonFp8Linear, tilings=linear),
        ref_fp8.lookup,
        partial(moe_fp8.Fp8Experts, tilings=experts),
    )


def _cuda_refusal(request: OpRequest) -> str | None:
    if request.dtype != torch.bfloat16:
        return "made for bfloat16"
    return kernel_refusal()


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


def _triton_delta(request: OpRequest) -> GatedDelta:
    from luce.engine.ops.triton.gated_delta import DeviceGatedDelta

    return DeviceGatedDelta(request.lanes, request.device)


def _triton_gated_heads() -> GatedHeads:
    from luce.engine.ops.triton.gated_heads import DeviceGatedHeads

    return DeviceGatedHeads()


def _triton_experts() -> _Mixture:
    from luce.engine.ops.triton.moe import DeviceExperts, add_mixture
    from luce.engine.ops.triton.moe_route import route

    return route, DeviceExperts, add_mixture


def _triton_attention(request: OpRequest) -> PagedAttention:
    from luce.engine.ops.cuda.decode_choice import decode_for
    from luce.engine.ops.cuda.prefill_choice import prefill_for
    from luce.engine.ops.triton.paged_attention import AttentionKernels, TritonAttention

    decode, takes_gates = decode_for(request)
    kernels = AttentionKernels(prefill_for(request), decode, takes_gates)
    return TritonAttention(request.heads, request.lanes, request.max_ctx, request.device, kernels)


def _linear_candidates(request: OpRequest) -> list[Candidate[LinearPacker]]:
    return [
        *_on_gpu(request, _triton_linear),
        Candidate("onednn", cpu_linear.PackedLinear, _unless_onednn),
        Candidate("ref", ref_linear.PlainLinear, never),
    ]


def _quantised_candidates(request: OpRequest) -> list[Candidate[QuantOps | None]]:
    plain = QuantOps(ref_quant.linear, ref_quant.lookup)
    on_gpu = _on_gpu(request, _triton_quantised)
    if on_gpu and on_gpu[0].refusal(request) is None:
        reason = _cuda_refusal(request)
        cuda = _cuda_quantised() if reason is None else None
        on_gpu.insert(0, Candidate("cuda", cuda, lambda _: reason))
    return [
        *on_gpu,
        Candidate("ref", plain, _if_cpu),
        Candidate("decoded_at_load", None, never),
    ]


def _fp8_candidates(request: OpRequest) -> list[Candidate[Fp8Ops | None]]:
    plain = Fp8Ops(ref_fp8.linear, ref_fp8.lookup, ref_fp8.pack_experts)
    return [
        *_on_gpu(request, _triton_fp8),
        Candidate("ref", plain, _if_cpu),
        Candidate("decoded_at_load", None, never),
    ]


def _rms_norm_candidates(request: OpRequest, native: NativeOps | None) -> list[Candidate[RmsNorm]]:
    return [
        *native_rms_norm(native),
        *_on_gpu(request, _triton_rms_norm),
        Candidate("cpu", cpu_pointwise.rms_norm, unless_cpu_float32),
        Candidate("ref", ref_pointwise.rms_norm, never),
    ]


def _rotate_candidates(*, interleaved: bool) -> list[Candidate[Rotate]]:
    fast = cpu_pointwise.rotate_interleaved if interleaved else cpu_pointwise.rotate_half
    plain = ref_pointwise.rotate_interleaved if interleaved else ref_pointwise.rotate_half
    return [Candidate("cpu", fast, unless_cpu_float32), Candidate("ref", plain, never)]


def _attention_candidates(
    request: OpRequest, native: NativeOps | None
) -> list[Candidate[PagedAttention]]:
    grouped = cpu_attention.GroupedAttention(
        request.heads, request.dtype, rereads=request.has_typed_cache
    )
    plain = ref_attention.ReferenceAttention(request.heads)
    return [
        *_on_gpu(request, lambda: _triton_attention(request)),
        *native_attention(native, request),
        Candidate("cpu_grouped", grouped, unless_cpu),
        Candidate("ref", plain, never),
    ]


def _place_candidates(
    request: OpRequest, native: NativeOps | None, stepwise: PlaceQkv
) -> list[Candidate[PlaceQkv]]:
    return [
        *_on_gpu(request, lambda: _triton_place_qkv(request)),
        *native_place_qkv(native, request),
        Candidate("stepwise", stepwise, never),
    ]


def _chosen(
    op: str, request: OpRequest, load: Callable[[], T], native: list[Candidate[T]], plain: T
) -> T:
    candidates = [*_on_gpu(request, load), *native, Candidate("ref", plain, never)]
    return choose(op, candidates, request)[0]


def select_ops(request: OpRequest) -> OpSet:
    """Choose every operation of a model."""
    native, native_choice = choose_native(request)
    pack_linear, linear_choice = choose("linear", _linear_candidates(request), request)
    quantised, fp8, stored_choices = _choose_stored(request)
    rms_norm, norm_choice = choose("rms_norm", _rms_norm_candidates(request, native), request)
    rotate, rotate_choice = choose(
        "rotate", _rotate_candidates(interleaved=request.interleaved_rope), request
    )
    attention, attention_choice = choose(
        "attention", _attention_candidates(request, native), request
    )
    # Made of the operations above, or in one with what stands around them.
    stepwise: PlaceQkv = StepwisePlaceQkv(rms_norm, rotate, ref_pointwise.store_kv)
    place_qkv, _ = choose("place_qkv", _place_candidates(request, native, stepwise), request)
    gate = ref_pointwise.silu_and_mul
    gates = native_silu_and_mul(native, gate)
    silu_and_mul = _chosen("silu_and_mul", request, _triton_silu_and_mul, gates, gate)
    product, gated_product = _choose_products(request, native, rms_norm, silu_and_mul)
    delta = ref_gated_delta.gated_delta
    deltas = native_gated_delta(native, delta)
    plain_heads: GatedHeads = ReferenceGatedHeads()
    heads = native_gated_heads(native)
    looped = ref_moe.LoopedExpertsPacker(pack_linear, silu_and_mul)
    mixture: _Mixture = (ref_moe.route, looped, ref_moe.add_mixture)
    mixtures = native_mixture(native, mixture)
    route, pack_experts, add_mixture = _chosen(
        "experts", request, _triton_experts, mixtures, mixture
    )
    choices = native_choice, linear_choice, *stored_choices, norm_choice, rotate_choice
    return OpSet(
        pack_linear=pack_linear,
        native=native,
        quantised=quantised,
        fp8=fp8,
        rms_norm=rms_norm,
        rotate=rotate,
        silu_and_mul=silu_and_mul,
        store_kv=ref_pointwise.store_kv,
        place_qkv=place_qkv,
        product=product,
        gated_product=gated_product,
        attention=attention,
        gated_delta=_chosen("gated_delta", request, partial(_triton_delta, request), deltas, delta),
        gated_heads=_chosen("gated_heads", request, _triton_gated_heads, heads, plain_heads),
        route=route,
        pack_experts=pack_experts,
        add_mixture=add_mixture,
        choices=(*choices, attention_choice),
    )


def _choose_stored(
    request: OpRequest,
) -> tuple[QuantOps | None, Fp8Ops | None, tuple[OpChoice, OpChoice]]:
    """For weights that stay as they are stored: quantised ones and FP8."""
    quantised, quantised_choice = choose("quantised", _quantised_candidates(request), request)
    fp8, fp8_choice = choose("fp8", _fp8_candidates(request), request)
    return quantised, fp8, (quantised_choice, fp8_choice)


def _choose_products(
    request: OpRequest, native: NativeOps | None, rms_norm: RmsNorm, silu_and_mul: SiluAndMul
) -> tuple[NormedProduct, NormedProduct]:
    """Norm and product, and norm, product and gate."""
    product: NormedProduct = StepwiseProduct(rms_norm)
    gated_product: NormedProduct = StepwiseGatedProduct(rms_norm, silu_and_mul)
    products: tuple[NormedProduct, NormedProduct]
    products, _ = choose(
        "product",
        [
            *_on_gpu(request, lambda: _triton_products(product, gated_product)),
            *native_products(native, product, gated_product),
            Candidate("stepwise", (product, gated_product), never),
        ],
        request,
    )
    return products
