"""A step that the engine runs, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass

from luce.scheduler.plan import StepPlan
from luce.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """A planned step whose result has not been applied yet.

    Attributes:
        plan: what the engine was told.
        sequences: of each of the plan's items.
    """

    plan: StepPlan
    sequences: tuple[Sequence, ...]

    @property
    def largest_prefill(self) -> Sequence | None:
        """Who has most prompt tokens in it, of equals the newest; None: it is of decoders alone."""
        sizes = {
            (item.num_tokens, seq.order): seq
            for seq, item in zip(self.sequences, self.plan.items, strict=True)
            if item.token_ids
        }
        return sizes[max(sizes)] if sizes else None
