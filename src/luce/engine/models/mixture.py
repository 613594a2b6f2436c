"""Builds a mixture of experts from a checkpoint's parameters, for any family that has them."""

from __future__ import annotations

from typing import Protocol

import torch

from luce.engine.layers.moe import MixtureOfExperts, SharedExpert
from luce.engine.models.base import Parameters
from luce.engine.ops.cpu.native_moe import native_experts
from luce.engine.ops.cpu.native_plain import mixed_linear
from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import ExpertMlp, FewTokensMixture, Router
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.select import OpSet
from luce.loaders.hparams import Experts, HParams


class LayerBuilder(Protocol):
    """What a mixture needs of its model's builder."""

    hparams: HParams
    parameters: Parameters
    ops: OpSet
    linear_bytes: int
    expert_loads: list[torch.Tensor]

    def norm(self, name: str) -> NormWeight:
        """A norm over the hidden size."""

    def linear(self, *parts: tuple[str, int], columns: int) -> Linear:
        """Matrices stacked by rows."""


def mixture(builder: LayerBuilder, experts: Experts, prefix: str, norm: str) -> MixtureOfExperts:
    """One layer's mixture.

    Args:
        builder: of the model.
        experts: how many and how large.
        prefix: what its parameters' names begin with, `layers.0.mlp.`.
        norm: name of the norm before it.
    """
    ops, hidden = builder.ops, builder.hparams.hidden_size
    gate = [(f"{prefix}gate.weight", experts.num_experts)]
    if experts.shared_size:
        # The shared expert's own gate reads the same input: one product for both.
        gate.append((f"{prefix}shared_expert_gate.weight", 1))
    shape = (experts.num_experts, experts.size, hidden)
    input_norm = builder.norm(norm)
    packed = _experts(builder, f"{prefix}experts.", shape)
    builder.linear_bytes += packed.nbytes
    loads = input_norm.weight.new_zeros(experts.num_experts, dtype=torch.int64)
    builder.expert_loads.append(loads)
    router = Router(
        gate=_gate(builder, gate),
        num_experts=experts.num_experts,
        num_chosen=experts.num_per_token,
        norm_weights=experts.norm_weights,
        op=ops.route,
        loads=loads,
    )
    shared = _shared(builder, experts, f"{prefix}shared_expert.")
    return MixtureOfExperts(
        norm=input_norm,
        router=router,
        experts=packed,
        shared=shared,
        rms_norm=ops.rms_norm,
        silu_and_mul=ops.silu_and_mul,
        add=ops.add_mixture,
        few=_few(ops, packed, shared, router),
    )


def _few(
    ops: OpSet, experts: ExpertMlp, shared: SharedExpert | None, router: Router
) -> FewTokensMixture | None:
    """Of few tokens all in one, where there is an operation for it."""
    if ops.quantised is None or ops.quantised.fuse_few is None:
        return None
    gate_up, down = (None, None) if shared is None else (shared.gate_up, shared.down)
    return ops.quantised.fuse_few(experts, gate_up, down, router)


def _gate(builder: LayerBuilder, parts: list[tuple[str, int]]) -> Linear:
    """The router's product: a small matrix, which files leave plain."""
    native, hidden = builder.ops.native, builder.hparams.hidden_size
    if native is not None and native.is_used:
        stored = builder.parameters.stored(*((name, (rows, hidden)) for name, rows in parts))
        gate = mixed_linear(native, stored)
        if gate is not None:
            builder.linear_bytes += gate.nbytes
            return gate
    return builder.linear(*parts, columns=hidden)


def _experts(builder: LayerBuilder, prefix: str, shape: tuple[int, int, int]) -> ExpertMlp:
    """As they are stored where there are operations for it; else decoded."""
    ops, parameters = builder.ops, builder.parameters
    if ops.native is not None:
        stored = parameters.stored_experts(prefix, shape)
        tiled = None if stored is None else native_experts(ops.native, stored, shape)
        if tiled is not None:
            return tiled
    if ops.quantised is not None and ops.quantised.pack_experts is not None:
        planes = parameters.quantised_experts(prefix, shape)
        if planes is not None:
            return ops.quantised.pack_experts(*planes, shape[0], ops.silu_and_mul)
    if ops.fp8 is not None:
        matrices = parameters.fp8_experts(prefix, shape)
        if matrices is not None:
            return ops.fp8.pack_experts(*matrices, shape[0], ops.silu_and_mul)
    return ops.pack_experts(*parameters.experts(prefix, shape))


def _shared(builder: LayerBuilder, experts: Experts, prefix: str) -> SharedExpert | None:
    size, hidden = experts.shared_size, builder.hparams.hidden_size
    if not size:
        return None
    gate_up = ((f"{prefix}gate_proj.weight", size), (f"{prefix}up_proj.weight", size))
    return SharedExpert(
        gate_up=builder.linear(*gate_up, columns=hidden),
        down=builder.linear((f"{prefix}down_proj.weight", hidden), columns=size),
    )
