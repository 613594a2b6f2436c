"""The books: what is promised, seen, returning; and that nothing is booked twice."""

from __future__ import annotations

import pytest

from luce.placement.ledger import Ledger, LedgerError, Pool
from luce.placement.samples import Samples
from luce.testing.placement_bench import Clock


def books(**plans: int) -> tuple[Ledger, Samples]:
    samples = Samples(Clock())
    pool = Pool("g", ("g",), 100, 10)
    return Ledger([pool], {name: {"g": size} for name, size in plans.items()}, samples), samples


def sample(samples: Samples, free: int | None) -> None:
    samples.put("g", free, samples.epoch)


def test_a_load_from_promise_to_charge() -> None:
    ledger, samples = books(a=40)
    sample(samples, 100)
    assert ledger.state("g").avail_bytes == 90
    ledger.reserve("a")
    assert ledger.state("g").avail_bytes == 50
    samples.put("g", 75, samples.epoch, {"a": 25})
    state = ledger.state("g")
    assert (state.ours_bytes, state.pending_bytes, state.avail_bytes) == (25, 15, 50)
    ledger.settle("a", {"g": 44})
    sample(samples, 56)
    state = ledger.state("g")
    assert (state.ours_bytes, state.pending_bytes, state.avail_bytes) == (44, 0, 46)


def test_a_model_never_counts_with_less_than_was_planned() -> None:
    ledger, samples = books(a=40)
    ledger.reserve("a")
    ledger.settle("a", {"g": 10})
    sample(samples, 90)
    assert ledger.state("g").avail_bytes == 50


def test_what_is_given_back_is_free_when_it_is_back() -> None:
    ledger, samples = books(a=40)
    ledger.reserve("a")
    ledger.settle("a", {})
    ledger.unload("a")
    sample(samples, 100)  # The driver shows it already; others may not take it yet.
    state = ledger.state("g")
    assert (state.returning_bytes, state.avail_bytes) == (40, 50)
    ledger.keep("a", 5)
    assert (ledger.held_by("a"), ledger.needed_by("a")) == ({"g": 5}, {"g": 35})
    sample(samples, 95)
    assert ledger.state("g").avail_bytes == 85


def test_a_load_that_comes_to_nothing_leaves_what_was_there() -> None:
    ledger, samples = books(a=40)
    ledger.reserve("a")
    ledger.settle("a", {})
    ledger.unload("a")
    ledger.keep("a", 5)
    ledger.reserve("a")
    samples.put("g", 70, samples.epoch, {"a": 30})
    assert ledger.state("g").pending_bytes == 10
    ledger.cancel("a")
    assert ledger.held_by("a") == {"g": 5}
    assert ledger.phase_of("a") == "absent"


@pytest.mark.parametrize("retained", [0, 5])
def test_a_refused_eviction_changes_nothing(retained: int) -> None:
    ledger, _ = books(a=40)
    ledger.reserve("a")
    ledger.settle("a", {})
    ledger.unload("a")
    ledger.reopen("a")
    assert ledger.phase_of("a") == "resident"
    ledger.unload("a")
    ledger.keep("a", retained)
    ledger.unload("a")
    ledger.reopen("a")
    assert ledger.phase_of("a") == "absent"


def test_external_memory_is_what_nobody_here_has() -> None:
    ledger, samples = books(a=40)
    ledger.reserve("a")
    ledger.settle("a", {})
    sample(samples, 30)
    state = ledger.state("g")
    assert (state.external_bytes, state.avail_bytes) == (30, 20)
    sample(samples, None)
    state = ledger.state("g")
    assert (state.external_bytes, state.avail_bytes) == (0, None)


def test_what_is_pinned_is_told_apart() -> None:
    samples = Samples(Clock())
    pool = Pool("g", ("g",), 100, 0)
    ledger = Ledger([pool], {"a": {"g": 40}, "b": {"g": 20}}, samples, ("a",))
    ledger.reserve("a")
    ledger.reserve("b")
    assert ledger.state("g").pinned_bytes == 40


def test_i12_wrong_moves_are_fatal() -> None:
    ledger, _ = books(a=40)
    for move in (
        lambda: ledger.settle("a", {}),
        lambda: ledger.cancel("a"),
        lambda: ledger.reopen("a"),
        lambda: ledger.keep("a", -1),
    ):
        with pytest.raises(LedgerError):
            move()
    ledger.reserve("a")
    for move in (
        lambda: ledger.reserve("a"),
        lambda: ledger.unload("a"),
        lambda: ledger.keep("a", 0),
        lambda: ledger.replan("a", {"g": 1}),
        lambda: ledger.settle("a", {"g": -1}),
    ):
        with pytest.raises(LedgerError):
            move()
    with pytest.raises(LedgerError):
        Ledger([], {"a": {"g": -1}}, Samples(Clock()))


def test_the_books_notice_bytes_of_no_pool() -> None:
    samples = Samples(Clock())
    ledger = Ledger([], {"a": {"nowhere": 1}}, samples)
    ledger.reserve("a")
    ledger.settle("a", {})
    with pytest.raises(LedgerError, match="nowhere"):
        ledger.check()


def test_rows_of_the_status() -> None:
    ledger, samples = books(a=40)
    ledger.reserve("a")
    sample(samples, 80)
    assert ledger.devices() == [
        {
            "device": "g",
            "total_bytes": 100,
            "free_bytes": 80,
            "ours_bytes": 0,
            "visible_bytes": 0,
            "external_bytes": 20,
            "pending_bytes": 40,
            "returning_bytes": 0,
            "pinned_bytes": 0,
            "margin_bytes": 10,
            "avail_bytes": 30,
            "planned_bytes": {"a": 40},
            "held_bytes": {"a": 0},
            "seen_bytes": {},
        }
    ]


def test_a_sample_is_old_once_something_moved() -> None:
    ledger, samples = books(a=40)
    sample(samples, 100)
    assert samples.is_fresh("g", 1.0)
    ledger.reserve("a")
    assert not samples.is_fresh("g", 1.0)
    sample(samples, 100)
    ledger.settle("a", {})
    assert not samples.is_fresh("g", 1.0)


def test_what_a_model_was_promised_and_does_not_use_yet_is_nobody_elses() -> None:
    """A cache that is committed page by page: 15 bytes of others cannot hide behind it."""
    ledger, samples = books(a=40)
    ledger.reserve("a")
    ledger.settle("a", {})
    sample(samples, 60)
    state = ledger.state("g")
    assert (state.external_bytes, state.avail_bytes) == (0, 50)
    samples.put("g", 60, samples.epoch, {"a": 25})
    state = ledger.state("g")
    assert (state.visible_bytes, state.ours_bytes, state.external_bytes) == (25, 40, 15)
    assert state.avail_bytes == 35
    (row,) = ledger.devices()
    assert (row["visible_bytes"], row["seen_bytes"]) == (25, {"a": 25})


def test_a_load_that_takes_more_than_its_promise_is_no_longer_ours_alone() -> None:
    ledger, samples = books(a=40)
    ledger.reserve("a")
    samples.put("g", 30, samples.epoch, {"a": 70})
    state = ledger.state("g")
    assert (state.ours_bytes, state.pending_bytes, state.external_bytes) == (40, 0, 0)
    assert state.avail_bytes == 20


def test_a_process_that_rests_holds_host_memory_until_it_ends() -> None:
    samples = Samples(Clock())
    pools = [Pool("g", ("g",), 100, 0), Pool("host", ("cpu:0",), 1000, 0)]
    plans = {"a": {"g": 40, "host": 300}}
    ledger = Ledger(pools, plans, samples, rests={"a": {"host": 300}})
    ledger.reserve("a")
    ledger.settle("a", {})
    ledger.unload("a")
    ledger.keep("a", 5)
    assert ledger.held_by("a") == {"host": 300, "g": 5}
    assert ledger.needed_by("a") == {"g": 35, "host": 0}
    ledger.keep("a", None)
    assert ledger.held_by("a") == {}
