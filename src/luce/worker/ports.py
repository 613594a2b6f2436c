"""What the loop needs around it: an engine, a mailbox, a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from luce.errors import ApiError
from luce.protocol import messages as wire
from luce.protocol.sampling import GrammarSpec
from luce.scheduler.plan import StepPlan, StepResult


class PendingStep(Protocol):
    """A step the engine has started."""

    def result(self) -> StepResult:
        """Wait for its end.

        Raises:
            ApiError: the step failed; nothing of it may be used, the engine can go on.
        """


class StepEngine(Protocol):
    """What the loop asks of an engine."""

    def step(self, plan: StepPlan) -> PendingStep:
        """Start a step.

        Raises:
            ApiError: as `PendingStep.result`.
        """

    def use_vocabulary(
        self, tokens: Sequence[bytes], control_ids: Sequence[int], end_ids: Sequence[int]
    ) -> None:
        """Learn the tokens that grammars are about; see `messages.Vocabulary`.

        This and `check_grammar` are called from one thread beside the engine's.
        """

    def check_grammar(self, grammar: GrammarSpec) -> None:
        """Compile a grammar before its sequence is admitted.

        Raises:
            ApiError: this grammar cannot be followed.
        """


@dataclass(frozen=True, slots=True)
class GrammarChecked:
    """A request's grammar is compiled, or cannot be followed; comes from a thread of our own."""

    submit: wire.Submit
    error: ApiError | None


Incoming = wire.ToWorker | GrammarChecked
"""What the inbox holds."""


class Post(Protocol):
    """What the loop asks of a mailbox."""

    def receive(self, *, wait: bool) -> list[Incoming]:
        """Everything that has come; with `wait`, at least one message."""

    def post(self, message: Incoming) -> None:
        """Put a message of our own into the inbox; from any thread."""

    def send(self, message: wire.ToListener) -> None:
        """Queue a message; never blocks."""


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """Numbers of one model.

    Attributes:
        vocab_size: token ids are below it.
        depth: steps started before the oldest one's result is taken; 0 or 1.
        clock_ns: monotonic nanoseconds.
    """

    vocab_size: int
    depth: int
    clock_ns: Callable[[], int]
