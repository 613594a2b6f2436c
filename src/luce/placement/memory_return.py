"""Whether memory that was given back can be seen as free: drivers free some of it in the
background, so right after an eviction they may report gigabytes too little."""

from __future__ import annotations

from dataclasses import dataclass, field

_SHARE = 0.9


@dataclass(slots=True)
class MemoryReturn:
    """Watches one device after an eviction. Times are monotonic seconds.

    Attributes:
        free_before: what was free before it.
        expected: what should come back.
        began_s: when it was given back.
        patience_s: the longest wait.
        stable_s: no more is awaited once nothing has changed for this long.
    """

    free_before: int
    expected: int
    began_s: float
    patience_s: float
    stable_s: float
    _last_free: int | None = field(default=None, init=False)
    _rose_s: float = field(default=0.0, init=False)

    def is_over(self, free_bytes: int | None, now_s: float) -> bool:
        """Take a sample; True when waiting longer is of no use.

        Args:
            free_bytes: what is free now; None = nobody knows.
            now_s: when.
        """
        if free_bytes is None or now_s - self.began_s >= self.patience_s:
            return True
        if free_bytes - self.free_before >= _SHARE * self.expected:
            return True
        if self._last_free is None or free_bytes > self._last_free:
            self._rose_s = now_s
        self._last_free = free_bytes
        return now_s - self._rose_s >= self.stable_s
