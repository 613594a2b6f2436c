"""When things happened to one request, and the figures people ask for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class RequestTimings:
    """Monotonic nanoseconds; 0 = has not happened.

    Attributes:
        received_ns: the request's headers were read.
        admitted_ns: the worker took it.
        first_token_ns: the first output arrived.
        last_token_ns: the last output arrived.
        retired_ns: the worker let go of it.
    """

    received_ns: int = 0
    admitted_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    retired_ns: int = 0
    clock_ns: Callable[[], int] = field(default=time.monotonic_ns, repr=False)

    def __post_init__(self) -> None:
        if not self.received_ns:
            self.received_ns = self.clock_ns()

    def token(self) -> None:
        """Output arrived."""
        self.last_token_ns = self.clock_ns()
        if not self.first_token_ns:
            self.first_token_ns = self.last_token_ns

    @property
    def queue_ms(self) -> float | None:
        """From arrival to admission."""
        return self._between_ms(self.received_ns, self.admitted_ns)

    @property
    def ttft_ms(self) -> float | None:
        """From arrival to the first output."""
        return self._between_ms(self.received_ns, self.first_token_ns)

    @property
    def prefill_ms(self) -> float | None:
        """From admission to the first output."""
        return self._between_ms(self.admitted_ns, self.first_token_ns)

    @property
    def decode_ms(self) -> float | None:
        """From the first output to the last."""
        return self._between_ms(self.first_token_ns, self.last_token_ns)

    @property
    def total_ms(self) -> float:
        """From arrival until now."""
        return (self.clock_ns() - self.received_ns) / _NS_PER_MS

    def tokens_per_s(self, num_tokens: int) -> float | None:
        """Rate after the first token; None with fewer than two tokens."""
        elapsed_ns = self.last_token_ns - self.first_token_ns
        if num_tokens < 2 or elapsed_ns <= 0:
            return None
        return (num_tokens - 1) * _NS_PER_S / elapsed_ns

    @staticmethod
    def _between_ms(start_ns: int, end_ns: int) -> float | None:
        return (end_ns - start_ns) / _NS_PER_MS if start_ns and end_ns else None
