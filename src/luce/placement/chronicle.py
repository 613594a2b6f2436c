"""What placement tells people: one log line for each transition, and the last decisions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from luce.placement.arrival import Arrival
from luce.placement.fleet import Fleet
from luce.placement.history import DecisionHistory, DecisionRecord
from luce.placement.residency import Depth, ModelRecord
from luce.placement.situation import ModelFacts

log = logging.getLogger(__name__)

_MS_PER_S = 1000


def _short(facts: ModelFacts) -> dict[str, Any]:
    return {
        "state": facts.state.value,
        "in_flight": facts.in_flight,
        "waiting": facts.waiting,
    }


class Chronicle:
    """Writes it down; rules do not log.

    Attributes:
        history: the last decisions.
        num_failed: times one did not.
    """

    def __init__(self, fleet: Fleet, clock_s: Callable[[], float]) -> None:
        self.history = DecisionHistory()
        self.num_failed = 0
        self._fleet = fleet
        self._clock_s = clock_s

    def note(
        self, model: str, verdict: str, reason: str, victims: Mapping[str, Depth] | None = None
    ) -> None:
        """Keep a decision with what it was made from."""
        situation = self._fleet.situation(frozenset())
        record = DecisionRecord(
            at_s=self._clock_s(),
            model=model,
            verdict=verdict,
            reason=reason,
            victims=dict(victims or {}),
            inputs={name: _short(facts) for name, facts in situation.models.items()},
            available=self._fleet.available(),
        )
        self.history.add(record)

    def came_in(self, arrival: Arrival, record: ModelRecord) -> None:
        """A model is resident: what gave way, and where the time went."""
        self.note(record.name, "ready", record.last_reason)
        now_s = self._clock_s()
        drained_s = arrival.drained_s if arrival.drained_s is not None else now_s
        gone = [
            f"{name}:{depth}"
            for depths in (arrival.displaced, arrival.dropped)
            for name, depth in depths.items()
        ]
        log.info(
            "model came in",
            extra={
                "model": record.name,
                "evicted": ",".join(gone),
                "drain_ms": round((drained_s - arrival.began_s) * _MS_PER_S),
                "evict_ms": arrival.evict_ms,
                "reinstate_ms": record.last_reinstate_ms,
                "total_ms": round((now_s - arrival.began_s) * _MS_PER_S),
                "waiters": record.cohort,
            },
        )

    def failed(self, model: str, problem: str) -> None:
        """A model could not come in."""
        self.num_failed += 1
        self.note(model, "failed", problem)
        log.error("model did not come in", extra={"model": model, "error": problem})

    def drains(self, arrival: Arrival, model: str, in_flight: int, waited_s: float) -> None:
        """A model takes long to finish what runs."""
        log.warning(
            "model still drains",
            extra={
                "model": model,
                "in_flight": in_flight,
                "for_model": arrival.target,
                "waited_s": round(waited_s),
            },
        )
