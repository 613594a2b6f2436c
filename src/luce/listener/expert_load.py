"""How evenly a mixture's router spreads its tokens, from the counters its worker sends."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from luce.protocol.messages import WorkerStats


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """One layer's counters.

    Attributes:
        tokens: that each expert has had.
    """

    tokens: tuple[int, ...]

    @property
    def total(self) -> int:
        """Tokens of all experts: each of a step's tokens counts once for each of its experts."""
        return sum(self.tokens)

    @property
    def num_unused(self) -> int:
        """Experts that have had none."""
        return self.tokens.count(0)

    @property
    def imbalance(self) -> float | None:
        """Tokens of the busiest expert by those of the mean one: 1 to E. None before the first."""
        return max(self.tokens) * len(self.tokens) / self.total if self.total else None


def expert_loads(stats: WorkerStats) -> list[ExpertLoad]:
    """Those of each layer with a mixture; empty for a model without, or that has said nothing."""
    if not stats.num_experts:
        return []
    row = struct.Struct(f"<{stats.num_experts}q")
    return [ExpertLoad(tokens) for tokens in row.iter_unpack(stats.expert_loads)]


def experts_status(stats: WorkerStats, *, with_tokens: bool) -> dict[str, Any] | None:
    """What `/status/json` shows of it; None for a model without mixtures.

    Args:
        stats: the worker's latest.
        with_tokens: also each expert's tokens, a list for each layer.
    """
    loads = expert_loads(stats)
    if not loads:
        return None
    status: dict[str, Any] = {
        "num_experts": stats.num_experts,
        "routed_tokens": sum(load.total for load in loads),
        "layers": [{"imbalance": load.imbalance, "unused": load.num_unused} for load in loads],
    }
    if with_tokens:
        status["tokens"] = [load.tokens for load in loads]
    return status
