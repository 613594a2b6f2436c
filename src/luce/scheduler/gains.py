"""What a step's result has for each item: a token, a number in place of one, or hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from luce.errors import InternalError, InvalidGrammar
from luce.protocol.sampling import HiddenStates, TokenLogprobs
from luce.scheduler.plan import (
    FAILED_TOKEN,
    GRAMMAR_FAILED_TOKEN,
    ScheduledSequence,
    StepResult,
)
from luce.scheduler.sequence import Ending

NOT_FINITE = Ending(
    "error",
    InternalError.__name__,
    "The model's logits for this request are not finite numbers; its weights are damaged or "
    "too large for the chosen dtype.",
)
FAILURES = {
    FAILED_TOKEN: NOT_FINITE,
    GRAMMAR_FAILED_TOKEN: Ending(
        "error",
        InvalidGrammar.__name__,
        "The answer cannot be held to its schema or grammar any further: it became too complex, "
        "or leaves no token to go on with. Use a simpler one.",
    ),
}
"""Endings by the numbers in place of tokens."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token as a step's result has it, or one of the numbers in place of a token."""

    id: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Gain:
    """What a step has for one item.

    Attributes:
        token: None where none was sampled.
        hidden: what was read of the prompt; None where nothing was, or it was not finite.
    """

    token: Sampled | None
    hidden: HiddenStates | None


def gains(items: Sequence[ScheduledSequence], result: StepResult) -> Iterator[Gain]:
    """One for each item, in order."""
    logprobs = result.logprobs or (None,) * len(result.token_ids)
    sampled = iter([Sampled(*pair) for pair in zip(result.token_ids, logprobs, strict=True)])
    hidden = dict(result.hidden)
    for item in items:
        yield Gain(next(sampled) if item.sample else None, hidden.get(item.row))
    assert next(sampled, None) is None, "more tokens than were asked for"
