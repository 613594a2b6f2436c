"""The fixed sizes a scheduler works within."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Resolved once, before the first request.

    Attributes:
        max_rows: sequences that can hold a row at a time.
        max_ctx: tokens (prompt and output) one sequence may reach.
        chunk: prompt tokens computed in one step, over all sequences; decode tokens come on
            top, so that a full chunk never delays them.
        max_prefill_sequences: sequences that share a step's chunk.
        quantum: tokens dealt to a sequence before the next one's turn. A multiple of the
            block size keeps chunks on block borders.
    """

    max_rows: int
    max_ctx: int
    chunk: int
    max_prefill_sequences: int = 4
    quantum: int = 128

    def __post_init__(self) -> None:
        assert self.max_rows > 0, "a scheduler needs a row"
        assert self.max_ctx > 1, "a context holds a prompt token and an output token"
        assert self.chunk > 0, "prompts need a chunk to advance"
        assert self.max_prefill_sequences > 0, "prompts need a place to advance"
        assert self.quantum > 0, "a quantum is at least a token"
