"""The fixed sizes a scheduler works within."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """Where the state of recurrent layers is saved, for models that have them.

    A checkpoint costs a slot (20 to 150 MiB for Qwen3.5) and, in a prompt, a step that ends at
    its position; it saves later prompts the tokens before it.

    Attributes:
        interval_tokens: checkpoints of prompts and outputs come this often, more rarely in
            sequences that would take too many slots. 1024 tokens are two steps of the usual
            chunk, which end there anyway.
        min_gain_tokens: tokens between two checkpoints of a prompt at least. So few are computed
            in about the time of a decode step, which stopping for the checkpoint costs.
        opening_tokens: a prompt's last checkpoint leaves so many tokens behind it. The end of a
            chat prompt opens the answer (role, start of reasoning), and the next turn has
            other tokens there.
    """

    interval_tokens: int = 1024
    min_gain_tokens: int = 64
    opening_tokens: int = 8

    def __post_init__(self) -> None:
        assert self.interval_tokens > 0, "checkpoints have a distance"
        assert self.min_gain_tokens > 0, "a checkpoint saves at least a token"
        assert self.opening_tokens > 0, "the last token of a prompt is always computed"


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Resolved once, before the first request.

    Attributes:
        max_rows: sequences that can hold a row at a time.
        max_ctx: tokens (prompt and output) one sequence may reach.
        chunk: prompt tokens computed in one step, over all sequences; decode tokens come on
            top, so that a full chunk never delays them.
        max_prefill_sequences: sequences that share a step's chunk, if they fill it.
        quantum: tokens dealt to a sequence before the next one's turn. A multiple of the
            block size keeps chunks on block borders.
        checkpoints: where recurrent states are saved.
    """

    max_rows: int
    max_ctx: int
    chunk: int
    max_prefill_sequences: int = 4
    quantum: int = 128
    checkpoints: CheckpointPolicy = CheckpointPolicy()

    def __post_init__(self) -> None:
        assert self.max_rows > 0, "a scheduler needs a row"
        assert self.max_ctx > 1, "a context holds a prompt token and an output token"
        assert self.chunk > 0, "prompts need a chunk to advance"
        assert self.max_prefill_sequences > 0, "prompts need a place to advance"
        assert self.quantum > 0, "a quantum is at least a token"
