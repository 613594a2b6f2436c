"""Mixtures of experts the plain way: a loop over the experts that have tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.linear import Linear, LinearPacker
from luce.engine.ops.moe import Routing
from luce.engine.ops.pointwise import SiluAndMul


def route(
    logits: torch.Tensor, num_chosen: int, *, norm_weights: bool, loads: torch.Tensor
) -> Routing:
    """`ops.moe.Route`: softmax over all experts in float32, then the choice."""
    shares = torch.softmax(logits, dim=-1, dtype=torch.float32)
    weights, experts = torch.sort(shares, dim=-1, descending=True, stable=True)
    weights, experts = weights[:, :num_chosen], experts[:, :num_chosen]
    if norm_weights:
        weights = weights / weights.sum(-1, keepdim=True)
    chosen = experts.flatten()
    loads.index_add_(0, chosen, torch.ones_like(chosen))
    return Routing(experts, weights.to(logits.dtype))


def add_mixture(
    hidden: torch.Tensor,
    mixed: torch.Tensor,
    shared: torch.Tensor | None,
    gate: torch.Tensor | None,
) -> torch.Tensor:
    """`ops.moe.AddMixture`, operation by operation."""
    if shared is not None and gate is not None:
        mixed = mixed + shared * gate.sigmoid()
    return hidden.add_(mixed)


@dataclass(frozen=True, slots=True)
class LoopedExperts:
    """One `Linear` pair per expert.

    Attributes:
        gate_up: of each expert, [2F, hidden].
        down: of each expert, [hidden, F].
        silu_and_mul: the gate.
    """

    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]
    silu_and_mul: SiluAndMul

    def __call__(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """[T, hidden] → [T, hidden]; a token's experts are summed in their own order."""
        num_chosen = routing.experts.shape[1]
        experts, order = routing.experts.flatten().sort(stable=True)
        tokens, weights = order // num_chosen, routing.weights.flatten()[order].unsqueeze(1)
        hit, counts = torch.unique_consecutive(experts, return_counts=True)
        out = torch.zeros_like(x)
        start = 0
        for expert, count in zip(hit.tolist(), counts.tolist(), strict=True):
            part = slice(start, start + count)
            chosen = tokens[part]
            inner = self.silu_and_mul(self.gate_up[expert](x[chosen]))
            out.index_add_(0, chosen, self.down[expert](inner) * weights[part])
            start += count
        return out

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return sum(linear.nbytes for linear in (*self.gate_up, *self.down))


@dataclass(frozen=True, slots=True)
class LoopedExpertsPacker:
    """`ops.moe.ExpertPacker`: packs each expert as a dense product is."""

    pack_linear: LinearPacker
    silu_and_mul: SiluAndMul

    def __call__(self, gate_up: torch.Tensor, down: torch.Tensor) -> LoopedExperts:
        """Pack gate | up [E, 2F, hidden] and down [E, hidden, F]."""
        return LoopedExperts(
            tuple(self.pack_linear(each, None) for each in gate_up.unbind()),
            tuple(self.pack_linear(each, None) for each in down.unbind()),
            self.silu_and_mul,
        )
