"""What the last finished requests were like, for people who look at the status."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

HISTORY_LENGTH = 50


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One generation that ended well.

    Attributes:
        model: who served it.
        prompt_tokens: the whole prompt.
        cached: how many of them the prefix cache held.
        completion_tokens: the output.
        queue_ms: from arrival to admission.
        ttft_ms: from arrival to the first output; None: there was none.
        prefill_tok_s: prompt tokens computed a second; None: too fast to tell, or none.
        decode_tok_s: output tokens a second after the first; None with fewer than two.
    """

    model: str
    prompt_tokens: int
    cached: int
    completion_tokens: int
    queue_ms: float | None
    ttft_ms: float | None
    prefill_tok_s: float | None
    decode_tok_s: float | None


class PerfHistory:
    """The last finished requests, oldest first."""

    def __init__(self, length: int = HISTORY_LENGTH) -> None:
        self._requests: deque[FinishedRequest] = deque(maxlen=length)

    def add(self, request: FinishedRequest) -> None:
        """One more has finished; the oldest may be forgotten."""
        self._requests.append(request)

    def recent(self) -> list[FinishedRequest]:
        """All that are remembered."""
        return list(self._requests)
