"""Mixtures of experts: who computes which token, and the products of those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormWeight


@dataclass(frozen=True, slots=True)
class Routing:
    """Where tokens go.

    Attributes:
        experts: i64 [T, k]: distinct experts of each token.
        weights: [T, k]: what their results are multiplied by, in the type of the activations.
    """

    experts: torch.Tensor
    weights: torch.Tensor


class Route(Protocol):
    """Chooses experts."""

    def __call__(
        self, logits: torch.Tensor, num_chosen: int, *, norm_weights: bool, loads: torch.Tensor
    ) -> Routing:
        """The likeliest experts of each token; of equals the one of the lower number.

        Args:
            logits: [T, E]; rows may be strided.
            num_chosen: k.
            norm_weights: scale the chosen weights to sum to 1.
            loads: i64 [E]: how often each expert was chosen; counted up.
        """


class ExpertMlp(Protocol):
    """The gated feed-forward blocks of all experts, packed by an `ExpertPacker`."""

    def __call__(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """Sum over a token's experts of weight * down(silu(gate x) * up x).

        A token's result does not depend on the rest of the batch, beyond rounding, nor on the
        order of its experts in `routing`.

        Args:
            x: [T, hidden].
            routing: of the tokens.

        Returns:
            [T, hidden].
        """

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""


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

    def choose(self, x: torch.Tensor) -> tuple[Routing, torch.Tensor | None]:
        """Where the tokens of x, normalised, go, and the logits of the shared expert's gate."""
        return self.choose_by(self.gate(x))

    def choose_by(self, logits: torch.Tensor) -> tuple[Routing, torch.Tensor | None]:
        """The same by what the gate gave, [T, E] or [T, E + 1]."""
        routing = self.op(
            logits[:, : self.num_experts],
            self.num_chosen,
            norm_weights=self.norm_weights,
            loads=self.loads,
        )
        has_gate = logits.shape[1] > self.num_experts
        return routing, logits[:, self.num_experts :] if has_gate else None


class FewTokensMixture(Protocol):
    """A whole mixture, for few tokens."""

    @property
    def most_tokens(self) -> int:
        """Tokens it is for."""

    def __call__(self, hidden: torch.Tensor, norm: NormWeight, router: Router) -> torch.Tensor:
        """hidden + the chosen experts' sum + sigmoid(gate) * the shared one's, of norm(hidden).

        Args:
            hidden: [T, hidden], contiguous; overwritten.
            norm: of the input.
            router: chooses the experts.

        Returns:
            [T, hidden]; a token's result depends on no other token.
        """


class FuseFewTokens(Protocol):
    """Makes a `FewTokensMixture`."""

    def __call__(
        self, experts: ExpertMlp, gate_up: Linear | None, down: Linear | None, router: Router
    ) -> FewTokensMixture | None:
        """Of experts and the shared one; None, after saying why, where it is not made for them.

        Args:
            experts: to choose from.
            gate_up: of the shared expert, where there is one.
            down: of it.
            router: what the mixture will be called with.
        """


class AddMixture(Protocol):
    """Adds what a mixture gives to the residual."""

    def __call__(
        self,
        hidden: torch.Tensor,
        mixed: torch.Tensor,
        shared: torch.Tensor | None,
        gate: torch.Tensor | None,
    ) -> torch.Tensor:
        """hidden + mixed + sigmoid(gate) * shared, [T, hidden], in place of `hidden`.

        Args:
            hidden: [T, hidden].
            mixed: the chosen experts' sum.
            shared: the shared expert's result, where the model has one.
            gate: [T, 1], its gate's logit; may be strided.
        """


class ExpertPacker(Protocol):
    """Turns plain weights into an `ExpertMlp`, by copy or by keeping the tensors."""

    def __call__(self, gate_up: torch.Tensor, down: torch.Tensor) -> ExpertMlp:
        """Pack gate | up [E, 2F, hidden] and down [E, hidden, F]."""
