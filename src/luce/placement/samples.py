"""The latest answers of drivers, and whether anything has changed since."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FreeSample:
    """What a driver said.

    Attributes:
        free_bytes: None: it could not say.
        epoch: of the state it was asked in.
        at_s: monotonic seconds.
        shares: bytes of the rest that models of ours hold, as far as the driver tells.
    """

    free_bytes: int | None
    epoch: int
    at_s: float
    shares: Mapping[str, int] = field(default_factory=dict)


class Samples:
    """Written by whoever asks drivers; read by rules.

    Attributes:
        epoch: goes up whenever our own models move: an older answer may not show it yet.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.epoch = 0
        self._clock_s = clock_s
        self._latest: dict[str, FreeSample] = {}
        self._known: dict[str, FreeSample] = {}

    def moved(self) -> None:
        """A model of ours has begun or ceased to take memory."""
        self.epoch += 1

    def put(
        self,
        device: str,
        free_bytes: int | None,
        epoch: int,
        shares: Mapping[str, int] | None = None,
    ) -> None:
        """Keep an answer to a question that was asked in `epoch`."""
        sample = FreeSample(free_bytes, epoch, self._clock_s(), shares or {})
        self._latest[device] = sample
        if free_bytes is not None:
            self._known[device] = sample

    def is_fresh(self, device: str, max_age_s: float) -> bool:
        """The last answer, an "unknown" too, is young and nothing of ours has moved since."""
        sample = self._latest.get(device)
        if sample is None or sample.epoch != self.epoch:
            return False
        return self._clock_s() - sample.at_s <= max_age_s

    def free(self, device: str, max_age_s: float | None = None) -> int | None:
        """Free bytes by the last answer that had any; None: nobody knows. See `latest`."""
        sample = self.latest(device, max_age_s)
        return None if sample is None else sample.free_bytes

    def latest(self, device: str, max_age_s: float | None = None) -> FreeSample | None:
        """The last answer, or one before it that had more to say.

        Args:
            device: its UUID.
            max_age_s: an older answer counts only if it is the last; None = no other counts.
        """
        latest = self._latest.get(device)
        if latest is None or latest.free_bytes is not None or max_age_s is None:
            return latest
        known = self._known.get(device)
        if known is None or self._clock_s() - known.at_s >= max_age_s:
            return None
        return known
