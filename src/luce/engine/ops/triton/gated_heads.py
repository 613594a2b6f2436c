"""Queries apart from their gates, and the gates onto attention's result."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from luce.engine.ops.attention import AttentionStep, HeadShape
from luce.engine.ops.cuda.decode_few import FewGeometry, attend_few
from luce.engine.ops.cuda.decode_few_choice import few_refusal
from luce.engine.ops.kv_cache import KVCache, TypedCache
from luce.engine.ops.linear import Linear
from luce.engine.ops.qkv import PlaceQkv, Placing
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, sigmoid, wait_for_inputs
from luce.engine.ops.triton.paged_attention import TritonStep
from luce.engine.ops.triton.place_qkv import FusedPlaceQkv
from luce.engine.ops.triton.probe import launch_refusal
from luce.engine.ops.triton.quant_linear import TritonQuantLinear

_HEADS = 4


@direct
@triton.jit
def _split_kernel(
    projected, out, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    HEADS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (token, some heads): queries skip the gates before them."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    dims = tl.arange(0, BLOCK_D)[None, :]
    inside = (heads < H + 2 * K) & (dims < D)
    source = token * ((2 * H + 2 * K) * D) + (heads + tl.minimum(heads, H)) * D + dims
    values = tl.load(projected + source, mask=inside, other=0.0)
    tl.store(out + token * ((H + 2 * K) * D) + heads * D + dims, values, mask=inside)


@direct
@triton.jit
def _gate_kernel(
    mixed, projected, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    HEADS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (token, some heads): in place."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    dims = tl.arange(0, BLOCK_D)[None, :]
    inside = (heads < H) & (dims < D)
    source = token * ((2 * H + 2 * K) * D) + (2 * heads + 1) * D + dims
    gates = tl.load(projected + source, mask=inside, other=0.0)
    at = mixed + token * (H * D) + heads * D + dims
    values = tl.load(at, mask=inside, other=0.0)
    # The gate is rounded before it multiplies, as separate operations round.
    shares = sigmoid(gates.to(tl.float32)).to(values.dtype)
    tl.store(at, values * shares, mask=inside)


class DeviceGatedHeads:
    """`ops.gated_heads.GatedHeads`: one kernel each, or one with what places them."""

    def split(self, projected: torch.Tensor, heads: HeadShape) -> torch.Tensor:
        """[T, (2H + 2K) * D] → [T, (H + 2K) * D]."""
        count = heads.num_heads + 2 * heads.num_kv_heads
        out = projected.new_empty(len(projected), count * heads.head_dim)
        _split_kernel[(len(projected), triton.cdiv(count, _HEADS))](
            projected, out, **_sizes(heads), num_warps=2, **LAUNCH
        )
        return out

    def place(self, projected: torch.Tensor, placing: Placing, place_qkv: PlaceQkv) -> torch.Tensor:
        """In one kernel where there is one for the cache; keys and values are then left out."""
        heads = placing.heads
        if isinstance(place_qkv, FusedPlaceQkv) and not isinstance(placing.cache, TypedCache):
            fused = partial(place_qkv.split_and_place, projected, placing)
            if launch_refusal(("split_and_place", heads, projected.dtype), fused) is None:
                return fused()
        packed = self.split(projected, heads)
        place_qkv(packed, heads, placing.norms, placing.places, placing.cache)
        return packed

    def attend(
        self,
        step: AttentionStep,
        packed: torch.Tensor,
        cache: KVCache,
        projected: torch.Tensor,
        heads: HeadShape,
    ) -> torch.Tensor:
        """Attention, with the gates of those whose kernel takes them; then `gate` of the others."""
        if not isinstance(step, TritonStep) or not step.num_gated:
            return self.gate(step(packed, cache), projected, heads)
        mixed = step.gated(packed, cache, projected)
        if step.num_gated < len(mixed):
            self.gate(mixed[step.num_gated :], projected[step.num_gated :], heads)
        return mixed

    def add_attention(
        self,
        hidden: torch.Tensor,
        projected: torch.Tensor,
        placing: Placing,
        attention: tuple[PlaceQkv, AttentionStep],
        output: Linear,
    ) -> torch.Tensor:
        """See `ops.gated_heads.AddsAttention`: of a few single tokens one kernel does it."""
        order = None
        if isinstance(output, TritonQuantLinear):
            order = output.order_of_words(len(projected))
        step = _step_for_few(placing, *attention)
        if step is None:
            return output.add_to(hidden, self._attended(projected, placing, *attention))
        geometry = FewGeometry.of(placing, is_gated=True, order=order)
        if few_refusal(geometry, step.tensors, projected) is not None:
            return output.add_to(hidden, self._attended(projected, placing, *attention))
        found = attend_few(projected, placing, step.tensors, geometry)
        if order is None:
            return output.add_to(hidden, found)
        assert isinstance(output, TritonQuantLinear)
        return output.add_words(hidden, found)

    def _attended(
        self,
        projected: torch.Tensor,
        placing: Placing,
        place_qkv: PlaceQkv,
        step: AttentionStep,
    ) -> torch.Tensor:
        """Kernel after kernel."""
        heads = placing.heads
        packed = self.place(projected, placing, place_qkv)
        split = packed.view(len(packed), -1, heads.head_dim)
        return self.attend(step, split, placing.cache, projected, heads)

    def gate(self, mixed: torch.Tensor, projected: torch.Tensor, heads: HeadShape) -> torch.Tensor:
        """mixed * sigmoid(gates), in place."""
        _gate_kernel[(len(mixed), triton.cdiv(heads.num_heads, _HEADS))](
            mixed, projected, **_sizes(heads), num_warps=2, **LAUNCH
        )
        return mixed


def _step_for_few(placing: Placing, place_qkv: PlaceQkv, step: AttentionStep) -> TritonStep | None:
    """A step for which one kernel may do all, as far as types tell."""
    if not isinstance(place_qkv, FusedPlaceQkv) or place_qkv.interleaved:
        return None
    if not isinstance(step, TritonStep) or isinstance(placing.cache, TypedCache):
        return None
    return step


def _sizes(heads: HeadShape) -> dict[str, int]:
    return {
        "H": heads.num_heads,
        "K": heads.num_kv_heads,
        "D": heads.head_dim,
        "HEADS": _HEADS,
        "BLOCK_D": power_of_two(heads.head_dim),
    }
