"""Builds a mixture of experts from a checkpoint's parameters, for any family that has them."""

from __future__ import annotations

from typing import Protocol

import torch

from luce.engine.layers.moe import MixtureOfExperts, Router, SharedExpert
from luce.engine.models.base import Parameters
from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import ExpertMlp
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.select import OpSet
from luce.loaders.hparams import Experts, HParams


class LayerBuilder(Protocol):
    """What a mixture needs of its model's builder."""

    hparams: HParams
    parameters: Parameters
    ops: OpSet
    linear_bytes: int

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
    return MixtureOfExperts(
        norm=input_norm,
        router=Router(
            gate=builder.linear(*gate, columns=hidden),
            num_experts=experts.num_experts,
            num_chosen=experts.num_per_token,
            norm_weights=experts.norm_weights,
            op=ops.route,
            loads=input_norm.weight.new_zeros(experts.num_experts, dtype=torch.int64),
        ),
        experts=packed,
        shared=_shared(builder, experts, f"{prefix}shared_expert."),
        rms_norm=ops.rms_norm,
        silu_and_mul=ops.silu_and_mul,
        add=ops.add_mixture,
    )


def _experts(builder: LayerBuilder, prefix: str, shape: tuple[int, int, int]) -> ExpertMlp:
    """As they are stored where there are operations for it; else decoded."""
    ops, parameters = builder.ops, builder.parameters
    if ops.quantised is not None and ops.quantised.pack_experts is not None:
        planes = parameters.quantised_experts(prefix, shape)
        if planes is not None:
            return ops.quantised.pack_experts(*planes, shape[0], ops.silu_and_mul)
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
