"""Which models may serve a request, and in which order: pure functions over snapshots.

A policy never mutates, logs or reads a clock; whatever gates a mutation is decided again by
the router when it mutates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from luce.errors import ApiError, ModelLoading, ModelNotFound, ModelUnavailable
from luce.units import quoted

ServingState = Literal[
    "loading", "ready", "restarting", "unavailable", "closing", "evicted", "entering", "failed"
]
"""restarting: it has served, its worker died, and another one is on its way.

Only where models take turns: closing: admits nothing more, to make room for another. evicted: not
resident; comes in when a request names it. entering: on its way in. failed: it could not come in
and is not tried again for a while.
"""

UnknownModel = Literal["reject", "primary"]

ANY_MODEL = (None, "", "auto")
"""What a request writes that leaves the choice to us."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What routing knows of a request.

    Attributes:
        request_id: unique among the open requests.
        model: the name the client wrote, or None.
        has_begun: it goes on with an answer of which parts may be with the client already: a full
            queue does not turn it away.
    """

    request_id: str
    model: str | None = None
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class ModelView:
    """Snapshot of one model.

    Attributes:
        name: as configured.
        priority: 0 is the primary; the others follow in configured order.
        state: only `ready` models serve; those that restart are waited for if none is.
        in_flight: reservations not yet released.
        capacity: most reservations at a time; 0 until the worker has said.
        problem: of a failed model: what went wrong.
        retry_after_s: of a failed model: when it may be tried again.
    """

    name: str
    priority: int
    state: ServingState
    in_flight: int
    capacity: int
    problem: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Try:
    """These models may serve the request, the preferred one first; never empty."""

    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reject:
    """No model can serve the request now, busy ones included.

    Attributes:
        error: what to say.
        hint: what to say instead, behind the reasons of models ruled out before, if there are any;
            empty: `error` counts more than those.
    """

    error: ApiError
    hint: str = ""


Decision = Try | Reject


class RoutePolicy(Protocol):
    """Turns a request and the models into an order of preference."""

    @property
    def name(self) -> str:
        """What the status calls it."""

    @property
    def needs_all(self) -> bool:
        """Some requests are for one model alone: without it they are not served."""

    def pinned(self, request: RouteRequest) -> str | None:
        """The one model that may serve the request; None: several may, or there is none."""

    def decide(self, request: RouteRequest, models: Sequence[ModelView]) -> Decision:
        """Name the models to try. Busy models are named too: waiting is the router's matter.

        Args:
            request: the request.
            models: the models not ruled out for this request yet; at least one.
        """


class PrimaryFirst:
    """Every request prefers the primary, whatever model it names, then the others in order."""

    name = "primary-first"
    needs_all = False

    def pinned(self, request: RouteRequest) -> str | None:
        """None: names select nothing."""
        return None

    def decide(self, request: RouteRequest, models: Sequence[ModelView]) -> Decision:
        """Name the ready models by priority, else those that restart; see `RoutePolicy.decide`."""
        return _first_of(("ready", "restarting"), models) or Reject(_not_up(models))


class ByName:
    """A request is for the model it names and no other; without a name, for any resident one."""

    name = "by-name"
    needs_all = True

    def __init__(self, names: Sequence[str], unknown: UnknownModel = "reject") -> None:
        """Args:
        names: all models, the primary first.
        unknown: who serves a name that is none of them.
        """
        self._names = tuple(names)
        self._unknown = unknown

    def pinned(self, request: RouteRequest) -> str | None:
        """The model the request names, or the primary in place of an unknown one."""
        if request.model in ANY_MODEL:
            return None
        if request.model in self._names:
            return request.model
        return self._names[0] if self._unknown == "primary" else None

    def decide(self, request: RouteRequest, models: Sequence[ModelView]) -> Decision:
        """Name the one model, else the resident ones by priority; see `RoutePolicy.decide`."""
        if request.model in ANY_MODEL:
            return self._any_resident(models)
        pinned = self.pinned(request)
        if pinned is None:
            names = ", ".join(self._names)
            message = (
                f"There is no model {quoted(str(request.model), 128)}; available models: {names}."
            )
            return Reject(ModelNotFound(message, param="model"))
        return _only([model for model in models if model.name == pinned], pinned)

    def _any_resident(self, models: Sequence[ModelView]) -> Decision:
        """A swap under way counts as a model that is restarting: it may bring one in."""
        found = _first_of(("ready", "restarting", "entering"), models)
        if found is not None:
            return found
        absent = [model for model in models if model.state in ("evicted", "failed")]
        if not absent:
            return Reject(_not_up(models))
        names = ", ".join(model.name for model in sorted(absent, key=lambda m: m.priority))
        hint = f"Set model to one that is not resident to have it brought in: {names}."
        return Reject(ModelUnavailable(f"No model is resident. {hint}"), hint)


def _only(found: Sequence[ModelView], name: str) -> Decision:
    if not found:
        return Reject(ModelUnavailable(f"Model {name} does not serve this request."))
    (model,) = found
    if model.state == "failed":
        message = f"Model {name} could not be brought in: {model.problem}"
        return Reject(ModelUnavailable(message, retry_after_s=model.retry_after_s))
    if model.state in ("loading", "unavailable"):
        return Reject(_not_up(found))
    return Try((name,))


def _first_of(states: Sequence[ServingState], models: Sequence[ModelView]) -> Try | None:
    """The models in the first of these states that any is in, by priority."""
    for state in states:
        found = [model for model in models if model.state == state]
        if found:
            found.sort(key=lambda model: model.priority)
            return Try(tuple(model.name for model in found))
    return None


def _not_up(models: Sequence[ModelView]) -> ApiError:
    names = ", ".join(sorted(model.name for model in models))
    if any(model.state == "loading" for model in models):
        return ModelLoading(f"Still loading: {names}. Try again in a moment.")
    return ModelUnavailable(f"Not running: {names}. Try again later.")
