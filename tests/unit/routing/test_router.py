"""Scenes of the router by name; `tests/property/test_router.py` has every order of events."""

from __future__ import annotations

import pytest

from luce.errors import (
    ApiError,
    ContextLengthExceeded,
    ModelLoading,
    QueueFull,
    ShuttingDown,
    WorkerLost,
)
from luce.routing.policy import PrimaryFirst, RouteRequest
from luce.routing.reservation import Reservation
from luce.routing.router import Router
from luce.routing.ticket import Ticket


class Caller:
    """A ticket and what its waiter was told."""

    def __init__(self, router: Router, *fits: str, too_long_for: str = "") -> None:
        self.router = router
        self.ticket: Ticket = router.open(RouteRequest("r"))
        for model in fits:
            router.fits(self.ticket, model)
        if too_long_for:
            router.rule_out(self.ticket, too_long_for, ContextLengthExceeded("too long"))
        self.told: list[str] = []
        self.reservation: Reservation | None = None
        self.is_gone = False

    def grant(self, reservation: Reservation) -> bool:
        if self.is_gone:
            return False
        self.reservation = reservation
        reservation.submitted()
        self.told.append(reservation.model)
        return True

    def reject(self, error: ApiError) -> None:
        self.told.append(error.code)

    def look_again(self) -> None:
        self.told.append("look again")

    def wait(self) -> Caller:
        self.router.wait(self.ticket, self)
        return self

    def take(self, model: str) -> Reservation:
        reservation = self.router.try_reserve(self.ticket, model)
        assert reservation is not None
        reservation.submitted()
        return reservation


def make(capacity: int = 1, *, names: tuple[str, ...] = ("a", "b"), queue_limit: int = 8) -> Router:
    router = Router(names, PrimaryFirst(), queue_limit, clock_s=lambda: 0.0)
    for name in names:
        router.update_model(name, "ready", capacity)
    return router


def end(reservation: Reservation) -> None:
    reservation.admitted()
    reservation.drained()
    reservation.retired()


def test_capacity_is_all_there_is() -> None:
    router = make(names=("a",))
    first = Caller(router, "a").take("a")
    second = Caller(router, "a")
    assert router.try_reserve(second.ticket, "a") is None
    end(first)
    assert second.take("a").model == "a"


def test_waiters_are_served_in_order() -> None:
    router = make(names=("a",))
    held = Caller(router, "a").take("a")
    waiters = [Caller(router, "a").wait() for _ in range(3)]
    newcomer = Caller(router, "a")
    end(held)
    assert [waiter.told for waiter in waiters] == [["a"], [], []]
    assert router.try_reserve(newcomer.ticket, "a") is None
    assert router.num_waiting == 3
    assert waiters[0].reservation is not None
    end(waiters[0].reservation)
    assert [waiter.told for waiter in waiters] == [["a"], ["a"], []]


def test_waiter_takes_whichever_model_frees_first() -> None:
    router = make()
    Caller(router, "a").take("a")
    on_b = Caller(router, "b").take("b")
    waiter = Caller(router, "a", "b").wait()
    end(on_b)
    assert waiter.told == ["b"]


def test_waiter_that_fits_elsewhere_only_does_not_block() -> None:
    router = make()
    on_a, on_b = Caller(router, "a").take("a"), Caller(router, "b").take("b")
    Caller(router, "a", too_long_for="b").wait()
    for_b = Caller(router, "b", too_long_for="a").wait()
    end(on_b)
    assert for_b.told == ["b"]
    assert on_a.state.value == "submitted"


def test_handled_end_wakes_who_was_refused() -> None:
    router = make(capacity=2, names=("a",))
    running = Caller(router, "a").take("a")
    big = Caller(router, "a")
    big.take("a").refused()
    big.wait()
    assert big.told == []
    end(running)
    assert big.told == ["a"]


def test_refusals_wake_nobody_and_do_not_spin() -> None:
    router = make(capacity=2, names=("a",))
    callers = [Caller(router, "a") for _ in range(2)]
    probes = [caller.take("a") for caller in callers]
    for caller, probe in zip(callers, probes, strict=True):
        probe.refused()
        caller.wait()
    assert [caller.told for caller in callers] == [[], []]
    router.tick()
    assert [caller.told for caller in callers] == [["a"], []]


def test_big_request_is_not_starved_by_smaller_ones() -> None:
    """Refused for lack of room, it blocks the model for those behind until it is served."""
    router = make(capacity=4, names=("a",))
    running = Caller(router, "a").take("a")
    big = Caller(router, "a")
    big.take("a").refused()
    big.wait()
    small = Caller(router, "a")
    assert router.try_reserve(small.ticket, "a") is None
    small.wait()
    for _ in range(3):
        router.tick()
        assert big.reservation is not None
        assert small.told == []
        big.reservation.refused()
        big.wait()
    end(running)
    assert big.reservation is not None
    big.reservation.admitted()
    assert small.told == ["a"]


def test_queue_limit_and_the_hint_when_to_retry() -> None:
    router = make(names=("a",), queue_limit=1)
    Caller(router, "a").take("a")
    Caller(router, "a").wait()
    with pytest.raises(QueueFull) as caught:
        Caller(router, "a").wait()
    assert caught.value.retry_after_s == 1
    assert router.num_waiting == 1


def test_queue_limit_zero() -> None:
    router = make(names=("a",), queue_limit=0)
    Caller(router, "a").take("a")
    with pytest.raises(QueueFull):
        Caller(router, "a").wait()


def test_place_in_the_queue_survives_a_refusal_though_it_is_full() -> None:
    router = make(capacity=2, names=("a",), queue_limit=1)
    first, second = Caller(router, "a").take("a"), Caller(router, "a").take("a")
    waiter = Caller(router, "a").wait()
    end(first)
    assert waiter.reservation is not None
    with pytest.raises(QueueFull):
        Caller(router, "a").wait()
    waiter.reservation.refused()
    waiter.wait()
    end(second)
    assert waiter.told == ["a", "a"]


def test_gone_waiter_is_passed_over_and_costs_nothing() -> None:
    router = make(names=("a",))
    held = Caller(router, "a").take("a")
    gone, patient = Caller(router, "a").wait(), Caller(router, "a").wait()
    gone.is_gone = True
    end(held)
    assert (gone.told, patient.told) == ([], ["a"])
    assert router.views()[0].in_flight == 1


def test_leaving_the_queue_lets_the_next_one_in() -> None:
    router = make(capacity=2, names=("a",))
    Caller(router, "a").take("a")
    big = Caller(router, "a")
    big.take("a").refused()
    big.wait()
    small = Caller(router, "a").wait()
    assert small.told == []
    router.close(big.ticket)
    assert small.told == ["a"]


def test_nobody_left_says_why() -> None:
    router = make()
    caller = Caller(router)
    router.rule_out(caller.ticket, "a", ContextLengthExceeded("a is small"))
    assert router.candidates(caller.ticket) == ("b",)
    router.rule_out(caller.ticket, "b", ContextLengthExceeded("b is smaller"))
    with pytest.raises(ContextLengthExceeded, match="a is small"):
        router.candidates(caller.ticket)


def test_the_model_that_holds_most_says_how_much() -> None:
    router = make(names=("a", "b", "c"))
    caller = Caller(router)
    for name, holds in (("a", 1024), ("b", 4096), ("c", 2048)):
        router.rule_out(caller.ticket, name, ContextLengthExceeded(f"{name} is small"), holds)
    with pytest.raises(ContextLengthExceeded, match="b is small"):
        router.candidates(caller.ticket)


def test_what_a_retry_can_cure_is_said_first() -> None:
    router = make()
    caller = Caller(router)
    router.rule_out(caller.ticket, "a", ContextLengthExceeded("a is small"))
    router.rule_out(caller.ticket, "b", WorkerLost("b died"))
    with pytest.raises(WorkerLost):
        router.candidates(caller.ticket)


def test_model_that_comes_up_is_looked_at_by_waiters() -> None:
    router = make()
    router.update_model("b", "loading", 0)
    Caller(router, "a").take("a")
    waiter = Caller(router, "a").wait()
    router.update_model("b", "ready", 1)
    assert waiter.told == ["look again"]
    router.fits(waiter.ticket, "b")
    assert waiter.take("b").model == "b"


def test_last_model_that_goes_down_ends_the_wait() -> None:
    router = make(names=("a",))
    Caller(router, "a").take("a")
    waiter = Caller(router, "a").wait()
    router.update_model("a", "unavailable", 1)
    assert waiter.told == ["model_unavailable"]
    assert router.num_waiting == 0


def test_all_loading() -> None:
    router = Router(["a"], PrimaryFirst(), 8)
    with pytest.raises(ModelLoading):
        router.candidates(Caller(router).ticket)


def test_shut_down() -> None:
    router = make(names=("a",))
    running = Caller(router, "a").take("a")
    running.admitted()
    waiter, late = Caller(router, "a").wait(), Caller(router, "a")
    router.shut_down()
    assert waiter.told == ["shutting_down"]
    assert router.try_reserve(late.ticket, "a") is None
    with pytest.raises(ShuttingDown):
        router.candidates(late.ticket)
    with pytest.raises(ShuttingDown):
        router.open(RouteRequest("too late"))
    running.retired()
    running.drained()
    assert router.views()[0].in_flight == 0


# --- models that hold a request only in part ------------------------------------------------


def test_too_small_a_model_is_passed_over_even_when_it_is_idle() -> None:
    router = make()
    held = Caller(router, "b").take("b")
    caller = Caller(router, "b")
    router.fits(caller.ticket, "a", only=100)
    assert router.candidates(caller.ticket) == ("b",)
    caller.wait()
    assert caller.told == []
    end(held)
    assert caller.told == ["b"]


def test_where_none_is_large_enough_the_largest_are_tried() -> None:
    router = make(names=("a", "b", "c"))
    caller = Caller(router)
    for name, size in (("a", 50), ("b", 100), ("c", 100)):
        router.fits(caller.ticket, name, only=size)
    assert router.candidates(caller.ticket) == ("b", "c")
    router.rule_out(caller.ticket, "b", WorkerLost("b died"))
    assert router.candidates(caller.ticket) == ("c",)
    router.rule_out(caller.ticket, "c", WorkerLost("c died"))
    assert router.candidates(caller.ticket) == ("a",)


def test_small_model_steps_in_for_a_large_one_that_goes_down() -> None:
    router = make()
    held = Caller(router, "b").take("b")
    waiter = Caller(router, "b")
    router.fits(waiter.ticket, "a", only=100)
    waiter.wait()
    router.update_model("b", "unavailable", 1)
    assert waiter.told == ["a"]
    held.failed()


def test_waiting_for_the_large_one_blocks_nobody_on_the_small_one() -> None:
    router = make()
    on_a, _ = Caller(router, "a").take("a"), Caller(router, "b").take("b")
    waiter = Caller(router, "b")
    router.fits(waiter.ticket, "a", only=100)
    waiter.wait()
    end(on_a)
    assert Caller(router, "a").take("a").model == "a"


def test_retry_after_is_measured_while_there_is_work() -> None:
    now_s = 0.0
    router = Router(["a"], PrimaryFirst(), 1, clock_s=lambda: now_s)
    router.update_model("a", "ready", 1)
    for start_s in (0.0, 1000.0, 2000.0):
        now_s = start_s
        served = Caller(router, "a").take("a")
        now_s = start_s + 3
        end(served)
    Caller(router, "a").take("a")
    Caller(router, "a").wait()
    with pytest.raises(QueueFull) as refusal:
        Caller(router, "a").wait()
    assert refusal.value.retry_after_s == 6
