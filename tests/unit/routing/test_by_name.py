"""Routing by name: the table of A2, and what the router does with it."""

from __future__ import annotations

from typing import Any

import pytest

from luce.errors import (
    ApiError,
    ContextLengthExceeded,
    ModelLoading,
    ModelNotFound,
    ModelUnavailable,
    QueueFull,
    SwapDrainTimeout,
    WorkerLost,
)
from luce.routing.policy import ByName, ModelView, Reject, RouteRequest, ServingState, Try
from luce.routing.reservation import Reservation
from luce.routing.router import Router

NAMES = ("a", "b", "c")


def decide(model: str | None, *states: ServingState, unknown: Any = "reject") -> Any:
    views = [ModelView(NAMES[n], n, state, 0, 1) for n, state in enumerate(states)]
    return ByName(NAMES, unknown).decide(RouteRequest("r", model), views)


@pytest.mark.parametrize("state", ["ready", "restarting", "closing", "evicted", "entering"])
def test_a_name_is_tried_and_waited_for(state: ServingState) -> None:
    assert decide("b", "ready", state, "ready") == Try(("b",))


def test_a_name_that_failed_says_why_and_when() -> None:
    failed = ModelView("b", 1, "failed", 0, 1, "the file is broken", 12.5)
    decision = ByName(NAMES).decide(RouteRequest("r", "b"), [failed])
    assert isinstance(decision, Reject)
    assert isinstance(decision.error, ModelUnavailable)
    assert "the file is broken" in decision.error.message
    assert decision.error.retry_after_s == 12.5


@pytest.mark.parametrize(
    ("state", "error"), [("loading", ModelLoading), ("unavailable", ModelUnavailable)]
)
def test_a_name_that_is_not_up(state: ServingState, error: type[ApiError]) -> None:
    assert isinstance(decide("a", state, "ready").error, error)


@pytest.mark.parametrize("model", [None, "", "auto"])
def test_any_model_is_one_that_is_resident(model: str | None) -> None:
    assert decide(model, "evicted", "ready", "ready") == Try(("b", "c"))
    assert decide(model, "closing", "evicted", "restarting") == Try(("c",))
    assert decide(model, "closing", "entering", "evicted") == Try(("b",))
    nobody = decide(model, "evicted", "failed", "evicted")
    assert isinstance(nobody.error, ModelUnavailable)
    assert "a, b, c" in nobody.hint
    assert isinstance(decide(model, "loading", "loading").error, ModelLoading)


def test_an_unknown_name() -> None:
    refused = decide("z", "ready", "ready", "ready")
    assert isinstance(refused.error, ModelNotFound)
    assert "available models: a, b, c" in refused.error.message
    assert decide("z", "evicted", "ready", unknown="primary") == Try(("a",))
    assert ByName(NAMES, "primary").pinned(RouteRequest("r", "z")) == "a"
    assert ByName(NAMES).pinned(RouteRequest("r", "z")) is None
    assert len(str(decide("z" * 9999, "ready").error)) < 300


class Caller:
    """A request for a model, and what it was told."""

    def __init__(self, router: Router, model: str | None = "a") -> None:
        self.router = router
        self.ticket = router.open(RouteRequest("r", model))
        for name in NAMES[:2]:
            router.fits(self.ticket, name)
        self.told: list[Any] = []

    def grant(self, reservation: Reservation) -> bool:
        self.told.append(reservation.model)
        return True

    def reject(self, error: ApiError) -> None:
        self.told.append(error)

    def look_again(self) -> None:
        self.told.append("look again")

    def wait(self) -> Caller:
        self.router.wait(self.ticket, self)
        return self


class Observer:
    """Counts what a router tells."""

    def __init__(self) -> None:
        self.num_changes = 0
        self.admitted_by: list[str] = []
        self.drives = False

    def advance(self) -> None:
        self.num_changes += 1

    def admitted(self, model: str) -> None:
        self.admitted_by.append(model)

    def may_drive(self, model: str) -> bool:
        return self.drives


def make(limit: int = 8, states: tuple[ServingState, ...] = ("evicted", "ready")) -> Router:
    clock = iter(range(1000))
    router = Router(NAMES[:2], ByName(NAMES[:2]), limit, clock_s=lambda: float(next(clock)))
    router.observer = Observer()
    for name, state in zip(NAMES, states, strict=False):
        router.update_model(name, state, 1)
    return router


def observer(router: Router) -> Observer:
    assert isinstance(router.observer, Observer)
    return router.observer


def test_a_pinned_request_waits_until_its_model_is_there() -> None:
    router = make()
    caller = Caller(router).wait()
    assert (router.waiting_for("a"), router.waiting_for("b"), caller.told) == (1, 0, [])
    assert router.oldest_wait_s("a") > 0
    router.update_model("a", "ready", 1)
    assert (caller.told, router.in_flight("a")) == (["a"], 1)


def test_a_closing_model_is_given_to_nobody() -> None:
    router = make(states=("closing", "ready"))
    caller = Caller(router)
    assert router.try_reserve(caller.ticket, "a") is None
    assert caller.wait().told == []


def test_a_failed_model_ends_the_wait_of_all() -> None:
    router = make()
    callers = [Caller(router).wait(), Caller(router).wait()]
    router.update_model("a", "failed", 1, "broken", retry_at_s=1e6)
    errors = [caller.told[0] for caller in callers]
    assert [type(error) for error in errors] == [ModelUnavailable] * 2
    assert errors[0] is not errors[1]
    assert errors[0].retry_after_s > 1000


def test_a_waiter_can_be_refused_without_a_failure() -> None:
    router = make()
    mine, other = Caller(router).wait(), Caller(router, "b")
    router.reject_waiting("a", lambda: SwapDrainTimeout("too slow"))
    assert [type(told) for told in mine.told] == [SwapDrainTimeout]
    assert (router.num_waiting, other.told) == (0, [])


def test_who_drives_a_swap_is_not_counted_as_waiting() -> None:
    router = make(limit=0)
    with pytest.raises(QueueFull):
        Caller(router).wait()
    observer(router).drives = True
    driver = Caller(router).wait()
    observer(router).drives = False
    assert (router.num_waiting, router.waiting_for("a")) == (0, 1)
    with pytest.raises(QueueFull):
        Caller(router).wait()
    router.update_model("a", "ready", 1)
    assert driver.told == ["a"]


def test_what_rules_the_named_model_out_is_what_is_said() -> None:
    router = make(states=("ready", "ready"))
    caller = Caller(router)
    router.rule_out(caller.ticket, "b", WorkerLost("not this one"))
    router.rule_out(caller.ticket, "a", ContextLengthExceeded("too long"))
    with pytest.raises(ContextLengthExceeded, match="too long"):
        router.candidates(caller.ticket)


def test_too_long_for_every_resident_names_the_others() -> None:
    router = make()
    caller = Caller(router, None)
    router.rule_out(caller.ticket, "b", ContextLengthExceeded("too long", param="messages"))
    with pytest.raises(ContextLengthExceeded, match=r"too long.*brought in: a") as caught:
        router.candidates(caller.ticket)
    assert caught.value.param == "messages"


def test_the_observer_is_told_of_waiting_admissions_and_ends() -> None:
    router = make(states=("ready", "ready"))
    caller = Caller(router)
    reservation = router.try_reserve(caller.ticket, "a")
    assert reservation is not None
    reservation.submitted()
    reservation.admitted()
    assert observer(router).admitted_by == ["a"]
    before = observer(router).num_changes
    Caller(router).wait()
    assert observer(router).num_changes > before
    before = observer(router).num_changes
    reservation.drained()
    reservation.retired()
    assert observer(router).num_changes > before
