"""A request's place in the router: what is known of it so far and how to reach it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from luce.errors import ApiError
from luce.routing.policy import Reject, RouteRequest
from luce.routing.reservation import Reservation


class Waiter(Protocol):
    """How the router reaches a waiting request; each wait gets exactly one of these calls."""

    def grant(self, reservation: Reservation) -> bool:
        """A model has room. False: the request is gone, count nothing."""

    def reject(self, error: ApiError) -> None:
        """Waiting is over."""

    def look_again(self) -> None:
        """There is a model this request has not been checked against yet."""


class Place(enum.Enum):
    """Where a ticket is."""

    PROBING = "probing"
    """Its owner looks at models, or a worker has been asked."""
    WAITING = "waiting"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Ticket:
    """One open request; written by the router only.

    Attributes:
        request: what to route.
        fits: models whose limits hold the prompt.
        partly: those of `fits` that cannot hold all the output the client asked for, and the
            longest sequence each of them holds.
        order: models it may be given to now, the preferred one first.
        ruled_out: models that can never serve this request, and what to tell the client if
            none is left.
        holds: the longest sequence of those that are too small for it.
        refused_by: models whose worker had no room for it. While it queues, nobody behind it
            gets one of those: it would never see the room it needs.
        resting_on: those of them that have not changed since.
        place: see `Place`.
        queued: whether it has a position in the queue, which it keeps while it is probing.
        queued_at_s: since when.
        is_driver: its model is being brought in for it; it is not counted as waiting.
        waiter: whom to tell; set while waiting.
    """

    request: RouteRequest
    fits: set[str] = field(default_factory=set)
    partly: dict[str, int] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    ruled_out: dict[str, ApiError] = field(default_factory=dict)
    holds: dict[str, int] = field(default_factory=dict)
    refused_by: set[str] = field(default_factory=set)
    resting_on: set[str] = field(default_factory=set)
    place: Place = Place.PROBING
    queued: bool = False
    queued_at_s: float = 0.0
    is_driver: bool = False
    waiter: Waiter | None = None

    def rule_out(self, model: str, error: ApiError, holds: int = 0) -> None:
        """This model will not serve the request; it holds sequences of this length."""
        self.ruled_out[model] = error
        self.holds[model] = holds
        self.fits.discard(model)
        self.partly.pop(model, None)
        self.refused_by.discard(model)
        self.resting_on.discard(model)

    def prefer(self, order: tuple[str, ...]) -> None:
        """Set `order`, without the models that hold too little while another holds enough.

        Where none does, the ones that hold most are left: the output is cut to their room.
        """
        whole = tuple(name for name in order if name not in self.partly)
        if not whole:
            most = max(self.partly[name] for name in order)
            whole = tuple(name for name in order if self.partly[name] == most)
        self.order = whole

    def wants(self, model: str) -> bool:
        """It may be given to this model, and has been checked against it."""
        return model in self.fits and model in self.order

    def final_error(self, pinned: str | None = None) -> ApiError:
        """What to say when every model is ruled out.

        First whatever a retry might cure, then what the model says that holds most: a client that
        shortens its prompt should know to what.

        Args:
            pinned: the one model that counts; None = all.
        """
        if pinned is not None and pinned in self.ruled_out:
            return self.ruled_out[pinned]
        return self._retryable() or self._of_the_roomiest()

    def refusal(self, decision: Reject) -> ApiError:
        """What to say when the policy rejects what is left."""
        retryable = self._retryable()
        if retryable is not None:
            return retryable
        if self.ruled_out and decision.hint:
            error = self._of_the_roomiest()
            return type(error)(f"{error.message} {decision.hint}", param=error.param)
        return decision.error

    def _retryable(self) -> ApiError | None:
        return next((error for error in self.ruled_out.values() if error.retryable), None)

    def _of_the_roomiest(self) -> ApiError:
        return self.ruled_out[max(self.ruled_out, key=lambda model: self.holds[model])]
