"""What the loop needs around it: an engine, a mailbox, a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

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


KeptLevel = Literal["warm", "host", "cold"]
"""Of `messages.EvictionLevel` what a model on one device can keep."""


class KeptMemory(Protocol):
    """What an evicted model holds, in bytes."""

    @property
    def device_bytes(self) -> int:
        """On its device."""

    @property
    def host_bytes(self) -> int:
        """Weights in host memory."""


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

    def check_grammar(self, grammar: GrammarSpec) -> GrammarSpec:
        """Compile a grammar before its sequence is admitted.

        Returns:
            The same, holding what was compiled: the sequence comes with this one.

        Raises:
            ApiError: this grammar cannot be followed.
        """

    def expert_loads(self) -> npt.NDArray[np.int64] | None:
        """Tokens each expert has had, [mixtures, experts]; waits for the steps under way.

        None: the model has no mixtures.

        Raises:
            ApiError: the device failed.
        """

    def evict(self, level: KeptLevel, save: Callable[[], None]) -> KeptMemory:
        """Give memory back; no step is under way, and none comes until `reinstate`.

        Args:
            level: what is kept; of an evicted model less can be kept than before, never more, and
                no captured steps.
            save: called when nothing can fail any more, while blocks still hold what they held.

        Raises:
            LuceError: it cannot; nothing was changed.
        """

    def reinstate(self) -> int:
        """Serve again, in the same layout; nothing is known of any row or block.

        Returns:
            Host memory in which a copy of its weights stays for the next time, in bytes.

        Raises:
            LuceError: it cannot; the model is as evicted as before.
        """


@dataclass(frozen=True, slots=True)
class GrammarChecked:
    """A request's grammar is compiled, or cannot be followed; comes from a thread of our own.

    Attributes:
        grammar: what was compiled; None if it cannot be followed.
    """

    submit: wire.Submit
    grammar: GrammarSpec | None
    error: ApiError | None = None


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
        num_layers: blocks whose hidden states can be read.
        hidden_size: numbers of one.
    """

    vocab_size: int
    depth: int
    clock_ns: Callable[[], int]
    num_layers: int = 0
    hidden_size: int = 0
