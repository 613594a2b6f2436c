"""A layer of gated DeltaNet: one product in, the recurrence, one product out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.context import ForwardContext
from luce.engine.ops.gated_delta import AddsProduct, DeltaShape, DeltaWeights, GatedDelta
from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormedProduct, NormWeight


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention of one layer.

    Attributes:
        layer: index among the layers of this kind, that of its state.
        shape: geometry.
        norm: of the input.
        projection: queries, keys, values, z, beta and decay in one product, rows in this order.
        output: [hidden, Hv * Dv].
        weights: what stands between.
        product: norm and projection.
        op: the implementation.
    """

    layer: int
    shape: DeltaShape
    norm: NormWeight
    projection: Linear
    output: Linear
    weights: DeltaWeights
    product: NormedProduct
    op: GatedDelta

    def forward(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """hidden + mixer(norm(hidden)), [T, hidden]; `hidden` may be overwritten.

        The step's sequences' states advance.
        """
        projected = self.product(hidden, self.norm, self.projection)
        state = ctx.state_layers[self.layer]
        if isinstance(self.op, AddsProduct):
            weights, states = (self.shape, self.weights), (state, ctx.states)
            return self.op.add_product(hidden, projected, weights, states, self.output)
        mixed = self.op(projected, self.shape, self.weights, state, ctx.states)
        return self.output.add_to(hidden, mixed)
