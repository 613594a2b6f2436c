"""Which models may serve a request, and in which order: pure functions over snapshots.

A policy never mutates, logs or reads a clock; whatever gates a mutation is decided again by
the router when it mutates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from luce.errors import ApiError, ModelLoading, ModelUnavailable

ServingState = Literal["loading", "ready", "restarting", "unavailable"]
"""restarting: it has served, its worker died, and another one is on its way."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What routing knows of a request.

    Attributes:
        request_id: unique among the open requests.
        model: the name the client wrote, or None.
    """

    request_id: str
    model: str | None = None


@dataclass(frozen=True, slots=True)
class ModelView:
    """Snapshot of one model.

    Attributes:
        name: as configured.
        priority: 0 is the primary; the others follow in configured order.
        state: only `ready` models serve; those that restart are waited for if none is.
        in_flight: reservations not yet released.
        capacity: most reservations at a time; 0 until the worker has said.
    """

    name: str
    priority: int
    state: ServingState
    in_flight: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Try:
    """These models may serve the request, the preferred one first; never empty."""

    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reject:
    """No model can serve the request now, busy ones included."""

    error: ApiError


Decision = Try | Reject


class RoutePolicy(Protocol):
    """Turns a request and the models into an order of preference."""

    @property
    def name(self) -> str:
        """What the status calls it."""

    def decide(self, request: RouteRequest, models: Sequence[ModelView]) -> Decision:
        """Name the models to try. Busy models are named too: waiting is the router's matter.

        Args:
            request: the request.
            models: the models not ruled out for this request yet; at least one.
        """


class PrimaryFirst:
    """Every request prefers the primary, whatever model it names, then the others in order."""

    name = "primary-first"

    def decide(self, request: RouteRequest, models: Sequence[ModelView]) -> Decision:
        """Name the ready models by priority, else those that restart; see `RoutePolicy.decide`."""
        for state in ("ready", "restarting"):
            found = [model for model in models if model.state == state]
            if found:
                found.sort(key=lambda model: model.priority)
                return Try(tuple(model.name for model in found))
        names = ", ".join(sorted(model.name for model in models))
        if any(model.state == "loading" for model in models):
            return Reject(ModelLoading(f"Still loading: {names}. Try again in a moment."))
        return Reject(ModelUnavailable(f"Not running: {names}. Try again later."))
