"""How fast requests end, to tell a refused client when a retry makes sense."""

from __future__ import annotations

import math
from collections import deque

_WINDOW = 32
_SHORTEST_S = 1.0
_LONGEST_S = 60.0


class DrainRate:
    """Ends of the last requests; pure arithmetic on times the caller passes in."""

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=_WINDOW)

    def ended(self, now_s: float) -> None:
        """A request ended and gave its capacity back."""
        self._ends_s.append(now_s)

    def retry_after_s(self, now_s: float, num_ahead: int) -> float:
        """Whole seconds until `num_ahead` requests should have ended, 1 to 60.

        The rate is that of the remembered ends up to now, so a server that stands still gives
        ever longer answers. Without two ends to measure it is one second.
        """
        if len(self._ends_s) < 2:
            return _SHORTEST_S
        seconds_per_end = (now_s - self._ends_s[0]) / (len(self._ends_s) - 1)
        return min(max(math.ceil(seconds_per_end * num_ahead), _SHORTEST_S), _LONGEST_S)
