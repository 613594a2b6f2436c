"""The router under any order of events: capacity conserved, one end each, first come first
served, no lost wake-up, bounded queue."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from luce.errors import ApiError, ContextLengthExceeded
from luce.routing.policy import PrimaryFirst, RouteRequest, ServingState
from luce.routing.reservation import Reservation, ReservationState
from luce.routing.router import Router
from luce.routing.ticket import Place, Ticket

NAMES = ("a", "b", "c")


@dataclass(eq=False)
class Request:
    """One request and its owner: what `listener.admission` does, without the awaits."""

    number: int
    fitting: frozenset[str]
    partly: dict[str, int]
    router: Router
    ticket: Ticket | None = None
    reservation: Reservation | None = None
    ends: list[str] = field(default_factory=list)
    is_gone: bool = False
    looks_again: bool = False

    # As a Waiter:

    def grant(self, reservation: Reservation) -> bool:
        if self.is_gone:
            return False
        assert self.reservation is None
        assert not ahead(self.router, reservation.model, self.ticket), "overtook in the queue"
        self.check_preference(reservation.model)
        self.reservation = reservation
        return True

    def check_preference(self, name: str) -> None:
        """Given to a model that holds part of it only where no ready one holds more."""
        if name not in self.partly:
            return
        assert self.ticket is not None
        ruled_out = self.ticket.ruled_out
        ready = {v.name for v in self.router.views() if v.state == "ready"} - set(ruled_out)
        assert ready <= set(self.partly), "cut although another model holds all of it"
        assert self.partly[name] == max(self.partly[other] for other in ready)

    def reject(self, error: ApiError) -> None:
        self.ends.append(error.code)

    def look_again(self) -> None:
        self.looks_again = True


def ahead(router: Router, name: str, of: Ticket | None) -> list[Ticket]:
    """Those before `of` whose turn on this model comes first: who waits for it, and who was
    refused by it and would otherwise never see the room it needs."""
    queue = router._queue
    earlier = queue[: queue.index(of)] if of in queue else queue
    return [
        t for t in earlier if t.wants(name) and (t.place is Place.WAITING or name in t.refused_by)
    ]


class RouterMachine(RuleBasedStateMachine):
    @initialize(
        num_models=st.integers(1, 3),
        queue_limit=st.integers(0, 3),
        capacities=st.lists(st.integers(1, 2), min_size=3, max_size=3),
    )
    def start(self, num_models: int, queue_limit: int, capacities: list[int]) -> None:
        self.names = NAMES[:num_models]
        self.limit = queue_limit
        self.router = Router(self.names, PrimaryFirst(), queue_limit, clock_s=lambda: 0.0)
        self.states: dict[str, tuple[ServingState, int]] = {}
        for name, capacity in zip(self.names, capacities, strict=False):
            self.states[name] = ("ready", capacity)
            self.router.update_model(name, "ready", capacity)
        self.requests: list[Request] = []
        self.held: list[Reservation] = []
        self.arrivals = 0

    # --- the owner's moves -------------------------------------------------------------

    def look(self, request: Request) -> None:
        """From candidates to a reservation, a wait or an end."""
        ticket = request.ticket
        assert ticket is not None
        try:
            while request.reservation is None:
                for name in self.router.candidates(ticket):
                    if name not in ticket.fits:
                        self.check(request, ticket, name)
                        break
                    before = ahead(self.router, name, of=ticket)
                    reservation = self.router.try_reserve(ticket, name)
                    if reservation is not None:
                        assert not before, "overtook on arrival"
                        request.check_preference(name)
                        request.reservation = reservation
                        break
                else:
                    request.looks_again = False
                    self.router.wait(ticket, request)
                    if not request.looks_again:
                        break
        except ApiError as error:
            request.ends.append(error.code)
        self.note_grants()

    def check(self, request: Request, ticket: Ticket, name: str) -> None:
        if name not in request.fitting:
            self.router.rule_out(ticket, name, ContextLengthExceeded(name))
        elif name in request.partly:
            self.router.fits(ticket, name, only=request.partly[name])
        else:
            self.router.fits(ticket, name)

    def note_grants(self) -> None:
        """Grants put into requests by the last event; those who were told to stop are closed."""
        for request in self.requests:
            reservation = request.reservation
            if reservation is not None and reservation not in self.held:
                self.held.append(reservation)
                if reservation.state is ReservationState.HELD:
                    reservation.submitted()
            if request.ends and request.ticket is not None:
                self.router.close(request.ticket)
        for request in [r for r in self.requests if r.looks_again and not r.ends]:
            request.looks_again = False
            self.look(request)

    def submitted(self) -> list[Request]:
        return [
            r
            for r in self.requests
            if r.reservation is not None and r.reservation.state is ReservationState.SUBMITTED
        ]

    def admitted(self) -> list[Reservation]:
        return [
            r for r in self.held if r.state in (ReservationState.ADMITTED, ReservationState.RETIRED)
        ]

    # --- events ------------------------------------------------------------------------

    @rule(
        fitting=st.just(set(NAMES)) | st.sets(st.sampled_from(NAMES), min_size=1),
        partly=st.just({}) | st.dictionaries(st.sampled_from(NAMES), st.integers(1, 2)),
    )
    def arrive(self, fitting: set[str], partly: dict[str, int]) -> None:
        request = Request(self.arrivals, frozenset(fitting), partly, self.router)
        self.arrivals += 1
        request.ticket = self.router.open(RouteRequest(str(request.number)))
        self.requests.append(request)
        self.look(request)

    @precondition(lambda self: self.submitted())
    @rule(
        data=st.data(),
        answer=st.sampled_from(["admit", "admit", "busy", "busy", "never", "fail", "die"]),
    )
    def worker_answers(self, data: st.DataObject, answer: str) -> None:
        request = data.draw(st.sampled_from(self.submitted()))
        reservation, ticket = request.reservation, request.ticket
        assert reservation is not None
        assert ticket is not None
        if request.is_gone:
            reservation.failed()  # The abandoned submission has settled.
        elif answer == "admit":
            reservation.admitted()
            request.ends.append("served")
        elif answer == "fail":
            request.ends.append("failed")
            reservation.failed()
        else:
            if answer != "busy":
                self.router.rule_out(ticket, reservation.model, ContextLengthExceeded("x"))
            request.reservation = None
            if answer == "die":
                reservation.failed()
            else:
                reservation.refused()
            self.look(request)
        self.note_grants()

    @precondition(lambda self: self.admitted())
    @rule(data=st.data(), parts=st.sampled_from(["retired", "drained", "retired drained"]))
    def part_of_an_end(self, data: st.DataObject, parts: str) -> None:
        reservation = data.draw(st.sampled_from(self.admitted()))
        if "retired" in parts and reservation.state is ReservationState.ADMITTED:
            reservation.retired()
        if "drained" in parts:
            reservation.drained()
        if reservation.state is ReservationState.RELEASED:
            first = self.first_in_line(reservation.model)
            assert first is None or first.place is Place.PROBING, "room came back unnoticed"
        self.note_grants()

    @precondition(lambda self: any(not r.ends for r in self.requests))
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([r for r in self.requests if not r.ends]))
        request.is_gone = True
        request.ends.append("gone")
        assert request.ticket is not None
        self.router.close(request.ticket)
        self.note_grants()

    @rule(
        name=st.sampled_from(NAMES),
        state=st.sampled_from(["loading", "ready", "ready", "unavailable"]),
        capacity=st.integers(0, 3),
    )
    def model_changes(self, name: str, state: ServingState, capacity: int) -> None:
        if name in self.names:
            self.states[name] = (state, capacity)
            self.router.update_model(name, state, capacity)
            self.note_grants()

    @rule()
    def tick(self) -> None:
        self.router.tick()
        self.note_grants()
        for name in self.names:
            first = self.first_in_line(name)
            assert first is None or first.place is Place.PROBING, "a waiter was not woken"

    def first_in_line(self, name: str) -> Ticket | None:
        """Whose turn it is for a model that has room; who only looks around is passed over."""
        view = next(view for view in self.router.views() if view.name == name)
        if view.state != "ready" or view.in_flight >= view.capacity:
            return None
        interested = (t for t in self.router._queue if t.wants(name))
        return next(
            (t for t in interested if t.place is Place.WAITING or name in t.refused_by), None
        )

    # --- what always holds -------------------------------------------------------------

    @invariant()
    def capacity_is_conserved(self) -> None:
        live = [r for r in self.held if r.state is not ReservationState.RELEASED]
        for view in self.router.views():
            assert view.in_flight == sum(r.model == view.name for r in live)

    @invariant()
    def no_room_is_left_to_those_who_could_use_it(self) -> None:
        for name in self.names:
            first = self.first_in_line(name)
            if first is not None and first.place is Place.WAITING:
                assert name in first.resting_on, "room, a waiter, and nobody brings them together"

    @invariant()
    def queue_is_bounded(self) -> None:
        assert self.router.num_waiting <= self.limit

    @invariant()
    def one_end_each(self) -> None:
        for request in self.requests:
            assert len(request.ends) <= 1
            assert request.ticket is not None
            waiting = request.ticket.place is Place.WAITING
            probing = request.reservation is not None
            assert bool(request.ends) + waiting + probing >= 1, "a request nobody cares for"

    def teardown(self) -> None:
        """Whatever happened, everything can be ended and nothing is left."""
        if not hasattr(self, "router"):
            return
        self.router.shut_down()
        for request in self.requests:
            if request.reservation is not None:
                finish(request.reservation)
            if request.ticket is not None:
                self.router.close(request.ticket)
        for reservation in self.held:
            finish(reservation)
        assert self.router.num_waiting == self.router.num_open == 0
        assert all(view.in_flight == 0 for view in self.router.views())


def finish(reservation: Reservation) -> None:
    if reservation.state is ReservationState.HELD:
        reservation.unused()
    elif reservation.state is ReservationState.SUBMITTED:
        reservation.failed()
    elif reservation.state is ReservationState.ADMITTED:
        reservation.drained()
        reservation.retired()
    elif reservation.state is ReservationState.RETIRED:
        reservation.drained()


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=600, stateful_step_count=50, deadline=None)
