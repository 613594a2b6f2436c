"""Mixtures of experts over matrices that stay as they are stored, whatever way that is.

The matrices of all experts lie one below the other. Few tokens: a product for each pair of token
and expert. More: tiles of one expert's pairs against tiles of its matrix.
"""

from __future__ import annotations

from typing import Protocol

import torch
import triton
import triton.language as tl

from luce.engine.ops.moe import Routing
from luce.engine.ops.pointwise import SiluAndMul
from luce.engine.ops.triton.moe import FEW_TOKENS, combine
from luce.engine.ops.triton.moe_route import sort_pairs
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, wait_for_inputs


@triton.jit
def _weigh_kernel(
    parts, weights, out, CHOSEN: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr
):
    """Program (token, columns): the weighted sum of its pairs' float32 results."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(CHOSEN):
        pair = token * CHOSEN + choice
        part = tl.load(parts + pair * HIDDEN + columns, mask=inside, other=0.0)
        total += part * tl.load(weights + pair).to(tl.float32)
    tl.store(out + token * HIDDEN + columns, total.to(out.dtype.element_ty), mask=inside)


class ExpertStack(Protocol):
    """A matrix for each expert."""

    @property
    def rows(self) -> int:
        """Of one expert's."""

    @property
    def nbytes(self) -> int:
        """Memory of all of them."""

    def by_pair(self, x: torch.Tensor, experts: torch.Tensor, chosen: int) -> torch.Tensor:
        """Rows of x, each for `chosen` experts, times theirs: f32 [T * k, rows]."""

    def by_expert(
        self,
        x: torch.Tensor,
        sorted_pairs: tuple[torch.Tensor, torch.Tensor],
        routing: Routing,
        *,
        is_last: bool,
    ) -> torch.Tensor:
        """Tiles of pairs times their expert's matrix, [T * k, rows].

        Args:
            x: by token, or with `is_last` by sorted pair.
            sorted_pairs: of `sort_pairs`.
            routing: of the tokens.
            is_last: results are by pair and weighted, else by sorted pair.
        """


class StackedExperts:
    """`ops.moe.ExpertMlp` over two stacks.

    Args:
        gate_up: of each expert its gate, then its up.
        down: of each expert.
        num_experts: E.
        silu_and_mul: the gate.
    """

    def __init__(
        self, gate_up: ExpertStack, down: ExpertStack, num_experts: int, silu_and_mul: SiluAndMul
    ) -> None:
        self._gate_up, self._down = gate_up, down
        self._num_experts = num_experts
        self._silu_and_mul = silu_and_mul

    def __call__(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """[T, hidden] → [T, hidden]."""
        if len(x) <= FEW_TOKENS:
            return self._by_pair(x, routing)
        return self._by_expert(x, routing)

    def _by_pair(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        tokens, chosen = routing.experts.shape
        inner = self._silu_and_mul(self._gate_up.by_pair(x, routing.experts, chosen))
        parts = self._down.by_pair(inner, routing.experts, 1)
        hidden = self._down.rows
        out = x.new_empty(tokens, hidden)
        block = min(1024, power_of_two(hidden))
        _weigh_kernel[(tokens, triton.cdiv(hidden, block))](
            parts, routing.weights, out, CHOSEN=chosen, HIDDEN=hidden, BLOCK=block, num_warps=4,
            **LAUNCH,
        )  # fmt: skip
        return out

    def _by_expert(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        sorted_pairs = sort_pairs(routing.experts, self._num_experts)
        gate_up = self._gate_up.by_expert(x, sorted_pairs, routing, is_last=False)
        inner = self._gated(gate_up)
        parts = self._down.by_expert(inner, sorted_pairs, routing, is_last=True)
        return combine(parts, routing.experts.shape[1])

    def _gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of what `by_expert` made of the first matrices."""
        return self._silu_and_mul(gate_up)

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self._gate_up.nbytes + self._down.nbytes
