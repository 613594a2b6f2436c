"""How fast requests end, to tell a refused client when a retry makes sense."""

from __future__ import annotations

import math
from collections import deque

_WINDOW = 32
_SHORTEST_S = 1.0
_LONGEST_S = 60.0


class DrainRate:
    """Ends of the last requests, in seconds during which there was something to do.

    Pure arithmetic on times the caller passes in. A quiet night does not count: it says nothing
    about how fast the server is.
    """

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=_WINDOW)
        self._busy_s = 0.0
        self._busy_since_s: float | None = None

    def busy(self, now_s: float) -> None:
        """There is something to do. Saying it twice is harmless."""
        if self._busy_since_s is None:
            self._busy_since_s = now_s
            if not self._ends_s:
                self._ends_s.append(self._busy_s)

    def idle(self, now_s: float) -> None:
        """There is nothing to do any more."""
        self._busy_s = self._at(now_s)
        self._busy_since_s = None

    def ended(self, now_s: float) -> None:
        """A request ended and gave its capacity back."""
        self._ends_s.append(self._at(now_s))

    def retry_after_s(self, now_s: float, num_ahead: int) -> float:
        """Whole seconds until `num_ahead` requests should have ended, 1 to 60.

        The rate is that of the remembered ends up to now, so a server that stands still gives
        ever longer answers. Before the first end it is one second.
        """
        if len(self._ends_s) < 2:
            return _SHORTEST_S
        seconds_per_end = (self._at(now_s) - self._ends_s[0]) / (len(self._ends_s) - 1)
        return min(max(math.ceil(seconds_per_end * num_ahead), _SHORTEST_S), _LONGEST_S)

    def _at(self, now_s: float) -> float:
        if self._busy_since_s is None:
            return self._busy_s
        return self._busy_s + now_s - self._busy_since_s
