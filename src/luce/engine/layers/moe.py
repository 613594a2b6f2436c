"""The feed-forward block as a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import AddMixture, ExpertMlp, FewTokensMixture, Router
from luce.engine.ops.pointwise import RmsNorm, SiluAndMul
from luce.engine.ops.projection import NormWeight


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
        few: all of it in one, for few tokens, where the experts' storage allows.
    """

    norm: NormWeight
    router: Router
    experts: ExpertMlp
    shared: SharedExpert | None
    rms_norm: RmsNorm
    silu_and_mul: SiluAndMul
    add: AddMixture
    few: FewTokensMixture | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden + block(norm(hidden)), [T, hidden]; `hidden` may be overwritten."""
        if self.few is not None and len(hidden) <= self.few.most_tokens:
            return self.few(hidden, self.norm, self.router)
        x = self.rms_norm(hidden, self.norm.weight, self.norm.eps)
        routing, gate = self.router.choose(x)
        mixed = self.experts(x, routing)
        if self.shared is None:
            return self.add(hidden, mixed, None, None)
        shared = self.shared.down(self.silu_and_mul(self.shared.gate_up(x)))
        return self.add(hidden, mixed, shared, gate)
