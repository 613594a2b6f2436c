"""What the router keeps of a model."""

from __future__ import annotations

from dataclasses import dataclass

from luce.routing.policy import ModelView, ServingState


@dataclass(slots=True)
class RoutedModel:
    """One model; written by the router only.

    Attributes:
        retry_at_s: when a failed model may be tried again, on the router's clock.
    """

    name: str
    priority: int
    state: ServingState = "loading"
    capacity: int = 0
    in_flight: int = 0
    problem: str = ""
    retry_at_s: float | None = None

    @property
    def has_room(self) -> bool:
        """It can be given a request now."""
        return self.state == "ready" and self.in_flight < self.capacity

    def view(self, now_s: float) -> ModelView:
        """Snapshot for policies."""
        wait_s = None if self.retry_at_s is None else max(0.0, self.retry_at_s - now_s)
        return ModelView(
            self.name,
            self.priority,
            self.state,
            self.in_flight,
            self.capacity,
            self.problem,
            wait_s,
        )
