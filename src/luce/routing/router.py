"""The owner of routing state: capacities, reservations and the queue.

Lives on the event loop; no locks. Each method is one transition without an await, so nothing
is ever decided on state somebody else changed meanwhile. The router knows no sockets and no
workers: it is told what happens and answers through `Waiter` and `Reservation`.

Order: first come, first served. Whoever waits for a model gets it before any later request,
also when the later one is smaller; a request whose worker refused it for lack of room blocks
that model for those behind it until it is admitted, gives up, or finds another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from luce.errors import ApiError, QueueFull, ShuttingDown
from luce.routing.drain_rate import DrainRate
from luce.routing.model_state import RoutedModel
from luce.routing.observer import RouterObserver
from luce.routing.policy import ModelView, Reject, RoutePolicy, RouteRequest, ServingState
from luce.routing.reservation import Release, Reservation
from luce.routing.ticket import Place, Ticket, Waiter

TICK_S = 0.25
"""How often `tick` should be called: sees room that appears without a retirement."""


class Router:
    """Gives requests to models.

    Life of a ticket: `open` → any of `candidates`, `fits`, `rule_out`, `try_reserve`, `wait`
    → `close`, always.

    Attributes:
        policy: who is preferred.
        observer: who is told what happens to requests; None where models stay where they are.
    """

    def __init__(
        self,
        names: Sequence[str],
        policy: RoutePolicy,
        queue_limit: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        names: the models by priority, the primary first.
        policy: who is preferred.
        queue_limit: requests that may wait; 0 = none.
        clock_s: monotonic seconds.
        """
        self._models = {name: RoutedModel(name, priority) for priority, name in enumerate(names)}
        self.policy = policy
        self.observer: RouterObserver | None = None
        self._queue_limit = queue_limit
        self._clock_s = clock_s
        self._queue: list[Ticket] = []
        self._open: set[Ticket] = set()
        self._holders: dict[Reservation, Ticket] = {}
        self._drain_rate = DrainRate()
        self._stopping = False

    # --- what can be seen ----------------------------------------------------------------

    @property
    def queue_limit(self) -> int:
        """Most requests that may wait."""
        return self._queue_limit

    @property
    def num_waiting(self) -> int:
        """Requests with a position in the queue, without those that drive a swap."""
        return sum(not ticket.is_driver for ticket in self._queue)

    @property
    def num_open(self) -> int:
        """Tickets opened and not closed."""
        return len(self._open)

    @property
    def is_stopping(self) -> bool:
        """Nothing is admitted any more."""
        return self._stopping

    def views(self) -> list[ModelView]:
        """Snapshot of every model, by priority."""
        now_s = self._clock_s()
        return [model.view(now_s) for model in self._models.values()]

    def in_flight(self, name: str) -> int:
        """Reservations of a model."""
        return self._models[name].in_flight

    def waiting_for(self, name: str) -> int:
        """Requests in the queue that only this model may serve."""
        return len(self._pinned_to(name))

    def oldest_wait_s(self, name: str) -> float:
        """How long the first of them has waited; 0 if there is none."""
        pinned = self._pinned_to(name)
        return self._clock_s() - min(t.queued_at_s for t in pinned) if pinned else 0.0

    def overloaded(self, message: str) -> QueueFull:
        """The refusal of a request that cannot wait, or not any longer."""
        ahead = len(self._queue) + 1
        return QueueFull(
            message, retry_after_s=self._drain_rate.retry_after_s(self._clock_s(), ahead)
        )

    # --- what happens to models ----------------------------------------------------------

    def update_model(
        self,
        name: str,
        state: ServingState,
        capacity: int,
        problem: str = "",
        retry_at_s: float | None = None,
    ) -> None:
        """A model's state or capacity changed; tells waiters if it did.

        Args:
            name: the model.
            state: what it is now.
            capacity: most reservations at a time.
            problem: of a failed model: what went wrong.
            retry_at_s: of a failed model: when it may be tried again.
        """
        model = self._models[name]
        model.problem, model.retry_at_s = problem, retry_at_s
        if (model.state, model.capacity) == (state, capacity):
            return
        model.state, model.capacity = state, capacity
        self._wake(name)
        for ticket in [ticket for ticket in self._queue if ticket.place is Place.WAITING]:
            self._reconsider(ticket)
        self._dispatch()

    def tick(self) -> None:
        """Time has passed: a worker that had no room may have some."""
        for name in self._models:
            self._wake(name)
        self._dispatch()

    def reject_waiting(self, name: str, error: Callable[[], ApiError]) -> None:
        """End the wait of everyone who waits for this model alone; each gets its own error."""
        for ticket in self._pinned_to(name):
            if ticket.place is Place.WAITING:
                self._reject(ticket, error())

    def shut_down(self) -> None:
        """Admit nothing more; everyone who waits is told."""
        self._stopping = True
        for ticket in list(self._queue):
            if ticket.place is Place.WAITING:
                self._reject(ticket, _stopping())

    # --- what happens to requests --------------------------------------------------------

    def open(self, request: RouteRequest) -> Ticket:
        """A request has arrived.

        Raises:
            ShuttingDown: too late.
        """
        if self._stopping:
            raise _stopping()
        ticket = Ticket(request)
        self._open.add(ticket)
        return ticket

    def candidates(self, ticket: Ticket) -> tuple[str, ...]:
        """Models that may serve the request, the preferred one first, busy ones included.

        Raises:
            ApiError: none is left or ready; says why.
        """
        if self._stopping:
            raise _stopping()
        models = [view for view in self.views() if view.name not in ticket.ruled_out]
        pinned = self.policy.pinned(ticket.request)
        if not models or pinned in ticket.ruled_out:
            raise ticket.final_error(pinned)
        decision = self.policy.decide(ticket.request, models)
        if isinstance(decision, Reject):
            raise ticket.refusal(decision)
        ticket.prefer(decision.order)
        return ticket.order

    def fits(self, ticket: Ticket, name: str, *, only: int | None = None) -> None:
        """The model's limits hold this request's prompt and the output asked for.

        Args:
            ticket: the request.
            name: the model.
            only: it holds just a part of that output: the longest sequence it holds. It is a
                candidate only while no ready model holds all of it, and none holds more.
        """
        ticket.fits.add(name)
        if only is not None:
            ticket.partly[name] = only

    def rule_out(self, ticket: Ticket, name: str, error: ApiError, holds: int = 0) -> None:
        """The model will not serve this request; those behind it need not wait for that.

        Args:
            ticket: the request.
            name: the model.
            error: why; what the client is told if it is the last one, or holds most.
            holds: of a model that is too small: the longest sequence it holds.
        """
        ticket.rule_out(name, error, holds)
        self._dispatch()

    def try_reserve(self, ticket: Ticket, name: str) -> Reservation | None:
        """Take capacity of a model now; None if it has none or others are first."""
        model = self._models[name]
        if self._stopping or not model.has_room or name in ticket.resting_on:
            return None
        for earlier in self._queue:
            if earlier is ticket:
                break
            if earlier.wants(name) and (
                earlier.place is Place.WAITING or name in earlier.refused_by
            ):
                return None
        return self._reserve(ticket, model)

    def wait(self, ticket: Ticket, waiter: Waiter) -> None:
        """Queue, or keep the position already held, until `waiter` is called, exactly once.

        Raises:
            QueueFull: too many wait already.
            ApiError: as `candidates`.
        """
        self.candidates(ticket)
        if not ticket.queued:
            self._join_queue(ticket)
        ticket.place, ticket.waiter = Place.WAITING, waiter
        self._reconsider(ticket)
        self._dispatch()
        self._tell()

    def close(self, ticket: Ticket) -> None:
        """The request needs routing no more: admitted, failed or gone. Twice is harmless."""
        if ticket.place is Place.CLOSED:
            return
        self._leave_queue(ticket)
        ticket.place, ticket.waiter = Place.CLOSED, None
        self._open.discard(ticket)
        self._dispatch()
        self._tell()

    # --- reservations --------------------------------------------------------------------

    def _reserve(self, ticket: Ticket, model: RoutedModel) -> Reservation:
        reservation = Reservation(
            ticket.request.request_id, model.name, self._on_admit, self._on_release
        )
        model.in_flight += 1
        self._holders[reservation] = ticket
        self._drain_rate.busy(self._clock_s())
        return reservation

    def _let_go(self, reservation: Reservation) -> Ticket:
        self._models[reservation.model].in_flight -= 1
        ticket = self._holders.pop(reservation)
        if not self._holders:
            self._drain_rate.idle(self._clock_s())
        return ticket

    def _on_admit(self, reservation: Reservation) -> None:
        if self.observer is not None:
            self.observer.admitted(reservation.model)
        self.close(self._holders[reservation])

    def _on_release(self, reservation: Reservation, how: Release) -> None:
        if how == "handled":
            self._drain_rate.ended(self._clock_s())
        ticket, name = self._let_go(reservation), reservation.model
        if how == "busy" and name not in ticket.ruled_out:
            ticket.refused_by.add(name)
            ticket.resting_on.add(name)
        elif how == "handled":
            self._wake(name)
        self._dispatch()
        self._tell()

    # --- the queue -----------------------------------------------------------------------

    def _tell(self) -> None:
        if self.observer is not None:
            self.observer.advance()

    def _pinned_to(self, name: str) -> list[Ticket]:
        return [t for t in self._queue if self.policy.pinned(t.request) == name]

    def _join_queue(self, ticket: Ticket) -> None:
        """Whoever would start a swap now is let in over the limit: nobody else would start it."""
        pinned = self.policy.pinned(ticket.request)
        if self.observer is not None and pinned is not None:
            ticket.is_driver = self.observer.may_drive(pinned)
        is_let_in = ticket.is_driver or ticket.request.has_begun
        if not is_let_in and self.num_waiting >= self._queue_limit:
            full = " and the queue is full" if self._queue_limit else ""
            raise self.overloaded(f"All models are busy{full}.")
        self._queue.append(ticket)
        ticket.queued, ticket.queued_at_s = True, self._clock_s()

    def _wake(self, name: str) -> None:
        for ticket in self._open:
            ticket.resting_on.discard(name)

    def _dispatch(self) -> None:
        """Give free capacity to waiters until none can use any."""
        if self._stopping:
            return
        for model in self._models.values():
            while model.has_room and (ticket := self._next_for(model.name)) is not None:
                self._grant(ticket, model)

    def _next_for(self, name: str) -> Ticket | None:
        for ticket in self._queue:
            if not ticket.wants(name):
                continue
            if ticket.place is Place.WAITING:
                return None if name in ticket.resting_on else ticket
            if name in ticket.refused_by:
                return None
        return None

    def _grant(self, ticket: Ticket, model: RoutedModel) -> None:
        waiter = self._stop_waiting(ticket)
        reservation = self._reserve(ticket, model)
        if not waiter.grant(reservation):
            self._let_go(reservation)
            self._leave_queue(ticket)

    def _reconsider(self, ticket: Ticket) -> None:
        """The models may have changed under a waiter: it may have no hope, or a new one."""
        try:
            order = self.candidates(ticket)
        except ApiError as error:
            self._reject(ticket, error)
            return
        if any(name not in ticket.fits for name in order):
            self._stop_waiting(ticket).look_again()

    def _reject(self, ticket: Ticket, error: ApiError) -> None:
        waiter = self._stop_waiting(ticket)
        self._leave_queue(ticket)
        waiter.reject(error)

    def _stop_waiting(self, ticket: Ticket) -> Waiter:
        waiter = ticket.waiter
        if waiter is None:
            raise RuntimeError(f"request {ticket.request.request_id} is not waiting")
        ticket.place, ticket.waiter = Place.PROBING, None
        ticket.is_driver = False
        return waiter

    def _leave_queue(self, ticket: Ticket) -> None:
        if ticket.queued:
            self._queue.remove(ticket)
            ticket.queued = ticket.is_driver = False


def _stopping() -> ShuttingDown:
    return ShuttingDown("The server is stopping.")
