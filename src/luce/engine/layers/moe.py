"""The feed-forward block as a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import AddMixture, ExpertMlp, Route
from luce.engine.ops.pointwise import RmsNorm, SiluAndMul
from luce.engine.ops.projection import NormWeight


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses a token's experts.

    Attributes:
        gate: [E, hidden], or [E + 1, hidden] with the shared expert's own gate as last row.
        num_experts: E.
        num_chosen: experts of a token.
        norm_weights: their weights are scaled to sum to 1.
        op: the implementation.
        loads: i64 [E]: tokens each expert has had; see `ExpertLoads`.
    """

    gate: Linear
    num_experts: int
    num_chosen: int
    norm_weights: bool
    op: Route
    loads: torch.Tensor


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An expert that sees every token.

    Attributes:
        gate_up: gate and up in one product, [2F, hidden].
        down: [hidden, F].
    """

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """Sum of the chosen experts, and of the shared one times sigmoid of its own gate.

    Attributes:
        norm: of the input.
        router: chooses.
        experts: the experts to choose from.
        shared: the one that is not chosen, where the model has it.
        rms_norm: the norm's implementation.
        silu_and_mul: the shared expert's gate.
        add: of all of it to the residual.
    """

    norm: NormWeight
    router: Router
    experts: ExpertMlp
    shared: SharedExpert | None
    rms_norm: RmsNorm
    silu_and_mul: SiluAndMul
    add: AddMixture

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden + block(norm(hidden)), [T, hidden]; `hidden` may be overwritten."""
        router = self.router
        x = self.rms_norm(hidden, self.norm.weight, self.norm.eps)
        logits = router.gate(x)
        routing = router.op(
            logits[:, : router.num_experts],
            router.num_chosen,
            norm_weights=router.norm_weights,
            loads=router.loads,
        )
        mixed = self.experts(x, routing)
        if self.shared is None:
            return self.add(hidden, mixed, None, None)
        shared = self.shared.down(self.silu_and_mul(self.shared.gate_up(x)))
        return self.add(hidden, mixed, shared, logits[:, router.num_experts :])
