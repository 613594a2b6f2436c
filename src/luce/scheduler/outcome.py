"""What the scheduler answers: to an admission, to a step, to a question about itself.

Plain values; the worker turns them into messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from luce.kv.manager import KVStats
from luce.protocol.sampling import HiddenStates, TokenLogprobs

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The sequence has a row and its prompt's blocks; `cached_tokens` need no computing."""

    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Busy:
    """Not now: rows or blocks are taken. May be tried again, or elsewhere."""

    detail: str


@dataclass(frozen=True, slots=True)
class NeverFits:
    """The prompt is longer than this model can ever hold."""

    detail: str
    prompt_tokens: int
    max_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request makes no sense here and never will."""

    detail: str


AdmitResult = Admitted | Busy | NeverFits | Rejected


@dataclass(slots=True)
class SequenceDelta:
    """What one step added to one sequence.

    Not frozen, as it is made for every row of every step: a frozen one takes seven times as long.

    Attributes:
        request_id: whose.
        token_ids: new output tokens. A stop token is not among them: it is no text.
        finish: set in the sequence's last delta.
        logprobs: one for each of `token_ids` if the request asked for them.
        hidden: set in the only delta of a sequence that was read instead of answered.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    hidden: HiddenStates | None = None


@dataclass(frozen=True, slots=True)
class RetiredSequence:
    """The sequence's row and blocks are free; comes exactly once per admission.

    Attributes:
        request_id: whose.
        finish: how it ended.
        prompt_tokens: the whole prompt.
        cached_tokens: prompt tokens that were not computed for it: found at admission, or
            taken over later from a sequence that computed the same prefix.
        completion_tokens: sampled tokens, a stop token included.
        admitted_ns: monotonic time of the admission; the other times are 0 if never reached.
        first_token_ns: when the first sampled token was applied.
        last_token_ns: when the last one was.
        retired_ns: when row and blocks came free.
        error: class name of `luce.errors` if it failed.
        detail: the sentence that goes with `error`.
    """

    request_id: str
    finish: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    admitted_ns: int
    first_token_ns: int
    last_token_ns: int
    retired_ns: int
    error: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What applying one step's result led to."""

    deltas: tuple[SequenceDelta, ...]
    retired: tuple[RetiredSequence, ...]


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Gauges (`running`, `preempted`) and counters that only grow.

    Attributes:
        running: sequences that hold a row.
        preempted: sequences that wait to be recomputed.
        steps: plans made.
        prompt_tokens: prompt tokens of all admitted sequences.
        generated_tokens: sampled tokens that reached a sequence.
        preemptions: times a sequence lost its blocks.
        kv: the block pool's numbers.
    """

    running: int
    preempted: int
    steps: int
    prompt_tokens: int
    generated_tokens: int
    preemptions: int
    kv: KVStats
