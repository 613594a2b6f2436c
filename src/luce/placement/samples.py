"""The latest answers of drivers, and whether anything has changed since."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FreeSample:
    """What a driver said.

    Attributes:
        free_bytes: None: it could not say.
        epoch: of the state it was asked in.
        at_s: monotonic seconds.
    """

    free_bytes: int | None
    epoch: int
    at_s: float


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

    def put(self, device: str, free_bytes: int | None, epoch: int) -> None:
        """Keep an answer to a question that was asked in `epoch`."""
        sample = FreeSample(free_bytes, epoch, self._clock_s())
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
        """Free bytes by the last answer that had any; None: nobody knows.

        Args:
            device: its UUID.
            max_age_s: an older answer counts only if it is the last; None = no other counts.
        """
        latest = self._latest.get(device)
        if latest is None or latest.free_bytes is not None or max_age_s is None:
            return latest.free_bytes if latest is not None else None
        known = self._known.get(device)
        if known is None or self._clock_s() - known.at_s >= max_age_s:
            return None
        return known.free_bytes
