"""One step as pure data: what the scheduler decides and the engine executes.

No torch, no references to live objects: a plan can be built by hand in a test and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

from luce.protocol.sampling import HiddenStates, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class RowStart:
    """A row gets a new occupant; sent once, in the plan of its first step.

    Attributes:
        row: index in the engine's persistent per-sequence state.
        sampling: the sequence's parameters.
        seed: resolved seed, 0 <= seed < 2**64 (entropy was drawn by the scheduler if needed).
        history: all token ids known so far (prompt, and output when resuming after a
            preemption); the penalties' window is taken from its end.
        num_prompt_tokens: how many of `history` are prompt.
        restore_checkpoint: checkpoint copied into the row's recurrent state before its first
            step, which starts at the checkpoint's position; None: the state is zeroed. Of no
            meaning for a model without state.
    """

    row: int
    sampling: SamplingParams
    seed: int
    history: tuple[int, ...]
    num_prompt_tokens: int
    restore_checkpoint: int | None = None


@dataclass(slots=True)
class ScheduledSequence:
    """What one sequence does in this step; never changed.

    Not frozen, as it is made for every row of every step: a frozen one takes seven times as long.

    Attributes:
        row: the sequence's row.
        start: position of the first token computed.
        token_ids: tokens to compute, positions `start .. start+len-1`. Empty means: one
            decode token, the one this row sampled last (it may still be on the device).
        block_table: block ids covering positions `0 .. start+num_tokens-1`.
        sample: whether the last token's logits are sampled.
        output_index: index, in the sequence's output, of the token sampled here; with the
            seed it keys the random number, so text never depends on the batch.
        forced_token: chosen in place of what sampling would choose; penalties, grammar and
            logprobs see it like any other.
        save_checkpoint: checkpoint that the row's recurrent state is copied to after the step;
            it is then of position `start + num_tokens`. Starts come before the forward pass, so
            a plan may save to a checkpoint that it also restores from.
    """

    row: int
    start: int
    token_ids: tuple[int, ...]
    block_table: tuple[int, ...]
    sample: bool
    output_index: int = 0
    forced_token: int | None = None
    save_checkpoint: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return len(self.token_ids) or 1


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One engine step.

    Attributes:
        step: running number.
        starts: rows that get a new occupant before the step runs.
        items: decode rows and prefill chunks, mixed; at most one per row; decode rows first.
    """

    step: int
    starts: tuple[RowStart, ...]
    items: tuple[ScheduledSequence, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the whole step."""
        return sum(item.num_tokens for item in self.items)


FAILED_TOKEN = -1
"""In place of a token: this row's logits were not finite numbers. The other rows are right."""

GRAMMAR_FAILED_TOKEN = -2
"""In place of a token: this row's grammar went over its limits, or a forced token broke it."""

GRAMMAR_ENDED_TOKEN = -3
"""In place of a token: this row's grammar is complete, and the row has no end token to say so."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Sampled tokens of one step: one per item with `sample`, in the order of the items.

    Attributes:
        step: of the plan.
        token_ids: tokens; `FAILED_TOKEN` or `GRAMMAR_FAILED_TOKEN` for a row that failed and must
            not go on, `GRAMMAR_ENDED_TOKEN` for one that has ended.
        logprobs: one for each token, None where the row did not ask for it; empty if no row did.
        hidden: row and hidden states of each item that completed the prompt of a row that reads
            them; None in their place: they are not finite numbers.
    """

    step: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    hidden: tuple[tuple[int, HiddenStates | None], ...] = ()
