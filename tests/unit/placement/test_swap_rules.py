"""Taking turns, with fake workers and a fake clock; names of tests are rows of part A."""

from __future__ import annotations

import logging

import pytest

from luce.errors import ModelUnavailable, SwapDrainTimeout
from luce.placement.effects import CoordinatorOptions
from luce.placement.turns import TurnOptions, first_residents
from luce.testing.placement_bench import Bench, taking_turns

ONE = {"a": ("g0",), "b": ("g0",)}


def test_who_is_resident_after_the_start() -> None:
    devices = {"a": ("g0",), "b": ("g0",), "c": ("g1",), "d": ("g1", "g2"), "e": ("g2",)}
    assert first_residents(devices) == ("a", "c", "e")


def test_a11_a_failed_load_drops_what_others_keep_and_is_tried_once_more() -> None:
    turns = TurnOptions(kept_weights=("a", "c"), linger_s=0.0)
    bench = taking_turns({"a": ("g0",), "b": ("g0",), "c": ("g0",)}, ("a",), turns)
    bench.ask("c")
    bench.finish("a", retained_bytes=5)
    bench.finish("c")
    bench.end("c")
    bench.ask("b")
    assert bench.finish("c", retained_bytes=5).depth == "warm"
    assert bench.under_way() == [("b", None)]
    bench.finish("b", error="no memory", is_out_of_memory=True)
    assert sorted(bench.under_way()) == [("a", "cold"), ("c", "cold")]
    bench.finish("a")
    bench.finish("c")
    bench.finish("b")
    assert bench.states() == {"a": "sleeping", "b": "ready", "c": "sleeping"}
    assert bench.served == ["c", "b"]
    assert [bench.fleet[name].kept.level for name in ("a", "c")] == ["cold", "cold"]  # type: ignore[union-attr]


def test_a11_the_second_failure_is_the_last() -> None:
    turns = TurnOptions(kept_weights=("a",), linger_s=0.0)
    bench = taking_turns(ONE, ("a",), turns)
    bench.ask("b")
    bench.finish("a", retained_bytes=5)
    bench.finish("b", error="no memory")
    bench.finish("a")
    bench.finish("b", error="still no memory")
    assert bench.state("b") == "cooldown"
    assert bench.under_way() == [("a", None)]  # The dropped one comes back, cold.
    bench.finish("a")
    assert bench.states() == {"a": "ready", "b": "cooldown"}
    assert not bench.coordinator.arriving


def test_a_full_device_gets_back_what_parked_models_keep_there() -> None:
    """Their weights stay in host memory; who holds nothing on the device is not asked."""
    turns = TurnOptions(host_bytes=1000, linger_s=0.0)
    devices = {"a": ("g0",), "b": ("g0",), "c": ("g0",), "d": ("g1",), "e": ("g1",)}
    bench = taking_turns(devices, ("a", "d"), turns)
    for name, out, kept in (("b", "a", 7), ("e", "d", 7), ("c", "b", 0)):
        bench.ask(name)
        assert bench.finish(out, retained_bytes=kept, host_bytes=10).depth == "host"
        bench.finish(name)
        bench.end(name)
    bench.ask("b")
    bench.finish("c", retained_bytes=7, host_bytes=10)
    bench.finish("b", error="out of memory", is_out_of_memory=True)
    assert sorted(bench.under_way()) == [("a", "host"), ("c", "host")]
    bench.finish("a", host_bytes=10)
    bench.finish("c", host_bytes=10)
    bench.finish("b", weight_bytes=10)
    assert bench.state("b") == "ready"
    assert [bench.fleet[name].host_bytes for name in ("a", "c")] == [10, 10]


@pytest.mark.parametrize("kept", [0, 7])
def test_parked_models_keep_what_they_have_when_memory_is_not_what_lacks(kept: int) -> None:
    turns = TurnOptions(host_bytes=1000, linger_s=0.0)
    bench = taking_turns(ONE, ("a",), turns)
    bench.ask("b")
    bench.finish("a", retained_bytes=kept, host_bytes=10)
    bench.finish("b", error="broken", is_out_of_memory=kept == 0)
    assert bench.state("b") == "cooldown"


CHANGED = "b.gguf: has changed"


def test_nobody_gives_way_for_a_model_whose_files_have_changed() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.changed["b"] = CHANGED
    bench.ask("b")
    assert bench.states() == {"a": "ready", "b": "cooldown"}
    assert [(name, error.message) for name, error in bench.refused] == [("b", CHANGED)]
    assert (bench.operations, bench.checks) == ([], ["b"])
    assert not bench.coordinator.arriving
    bench.passes(31.0)
    bench.ask("b")  # Tried again after its pause, and still nobody moves.
    assert bench.states() == {"a": "ready", "b": "cooldown"}
    assert (bench.operations, len(bench.refused)) == ([], 2)
    bench.changed.clear()
    bench.passes(31.0)
    bench.ask("b")
    assert bench.under_way() == [("a", "cold")]


def test_files_are_not_looked_at_for_weights_that_some_memory_holds() -> None:
    turns = TurnOptions(host_bytes=100, linger_s=0.0)
    bench = taking_turns(ONE, ("a",), turns)
    bench.ask("b")
    assert bench.finish("a", host_bytes=10).depth == "host"
    bench.finish("b", weight_bytes=10)
    bench.end("b")
    assert bench.checks == ["b"]
    bench.changed["a"] = CHANGED
    bench.ask("a")
    assert bench.under_way() == [("b", "host")]
    assert bench.checks == ["b"]


def test_an_answer_about_files_that_nobody_waits_for_any_more_means_nothing() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.coordinator.checked("b", CHANGED)
    assert bench.states() == {"a": "ready", "b": "sleeping"}
    assert bench.refused == []


def test_a15_conflicts_on_two_devices_go_before_the_load() -> None:
    bench = taking_turns({"a": ("g0",), "b": ("g1",), "c": ("g0", "g1")}, ("a", "b"))
    bench.run("b")
    bench.ask("c")
    assert bench.under_way() == [("a", "cold")]
    bench.finish("a")
    assert bench.under_way() == []
    assert bench.states() == {"a": "sleeping", "b": "draining", "c": "queued"}
    bench.end("b")
    assert bench.under_way() == [("b", "cold")]
    bench.finish("b")
    assert bench.under_way() == [("c", None)]


def test_a18_weights_do_not_stay_for_a_model_of_several_devices() -> None:
    turns = TurnOptions(kept_weights=("a", "b"), linger_s=0.0)
    devices = {"a": ("g0",), "b": ("g0",), "c": ("g0", "g1")}
    bench = taking_turns(devices, ("a",), turns)
    bench.ask("b")
    assert bench.finish("a", retained_bytes=5).depth == "warm"
    bench.finish("b")
    bench.end("b")
    bench.ask("c")
    assert sorted(bench.under_way()) == [("a", "cold"), ("b", "cold")]
    bench.finish("a")
    assert ("c", None) not in bench.under_way()
    bench.finish("b")
    assert bench.under_way() == [("c", None)]


def test_a19_a_secondary_device_that_is_not_needed_keeps_its_part() -> None:
    bench = taking_turns({"a": ("g0", "g1"), "b": ("g0",)}, ("a",))
    bench.ask("b")
    assert bench.finish("a", retained_bytes=7).depth == "partial"
    kept = bench.fleet["a"].kept
    assert kept is not None
    assert (kept.devices, kept.nbytes) == (("g1",), 7)


def test_a20_a_part_that_is_in_the_way_goes_first() -> None:
    devices = {"a": ("g0", "g1"), "b": ("g0",), "c": ("g1",)}
    bench = taking_turns(devices, ("a",))
    bench.ask("b")
    bench.finish("a", retained_bytes=7)
    bench.finish("b")
    bench.ask("c")
    assert bench.under_way() == [("a", "cold")]
    bench.finish("a")
    assert bench.under_way() == [("c", None)]
    assert bench.state("b") == "ready"


def test_a_part_that_cannot_be_released_fails_the_newcomer_alone() -> None:
    bench = taking_turns({"a": ("g0", "g1"), "b": ("g0",), "c": ("g1",)}, ("a",))
    bench.ask("b")
    bench.finish("a", retained_bytes=7)
    bench.finish("b")
    bench.ask("c")
    bench.finish("a", error="busy")
    assert bench.states() == {"a": "sleeping", "b": "ready", "c": "cooldown"}
    assert "model a did not give way: busy" in bench.fleet["c"].problem


def test_those_it_came_in_for_are_served_before_it_goes() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.traffic.slots = 1
    bench.ask("b", "b", "b")
    bench.finish("a")
    bench.finish("b")
    assert bench.fleet["b"].cohort == 2
    bench.ask("a")
    bench.end("b")
    assert bench.state("b") == "ready"
    bench.end("b")
    assert bench.served == ["b"] * 3
    assert bench.state("b") == "draining"  # The last one runs; it still gives way.
    bench.end("b")
    assert bench.under_way() == [("b", "cold")]


def test_those_who_left_hold_up_nobody() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.traffic.slots = 1
    bench.ask("b", "b")
    bench.finish("a")
    bench.finish("b")
    bench.leave("b")
    bench.ask("a")
    assert bench.state("b") == "draining"


def test_who_comes_while_it_drains_waits_for_the_next_turn() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.run("a")
    bench.ask("b")
    bench.ask("a")
    bench.end("a")
    bench.finish("a")
    bench.finish("b")
    assert bench.served == ["b"]
    bench.end("b")
    bench.finish("b")
    bench.finish("a")
    assert bench.served == ["b", "a"]


def test_a_model_stays_its_least_time_unless_it_is_idle() -> None:
    turns = TurnOptions(min_residency_s=5.0, max_wait_s=3.0, linger_s=0.0)
    bench = taking_turns(ONE, ("a",), turns)
    bench.ask("b")
    bench.finish("a")
    bench.finish("b")
    bench.passes(1.0)
    bench.ask("a")
    assert bench.state("b") == "ready"
    bench.passes(2.9)
    assert bench.state("b") == "ready"
    bench.passes(0.2)
    assert bench.state("b") == "draining"  # Who has waited for three seconds overrides it.


def test_by_default_a_turn_is_as_long_as_its_swap_twice() -> None:
    """Two clients that send one request after the other share turns instead of swapping each."""
    bench = taking_turns(ONE, ("a",), TurnOptions(min_residency_s=None, linger_s=0.03))
    bench.ask("b")
    bench.finish("a", duration_ms=100)
    bench.finish("b", duration_ms=400)
    bench.ask("a")
    for _ in range(7):
        bench.end("b")
        bench.passes(0.01)  # The next request is on its way.
        assert bench.state("b") == "ready"
        bench.ask("b")
        bench.passes(0.1)
    assert bench.state("b") == "ready"
    bench.passes(0.04)
    assert bench.state("b") == "draining"  # 0.8 s are over, though there is work.
    assert bench.served.count("b") == 8
    bench.end("b")
    bench.finish("b", duration_ms=60_000)
    bench.finish("a", duration_ms=60_000)
    bench.ask("b")
    bench.passes(4.9)
    assert bench.state("a") == "ready"
    bench.passes(0.2)
    assert bench.state("a") == "draining"  # Never longer than five seconds.


def test_a_turn_is_not_as_short_as_the_fastest_swaps() -> None:
    bench = taking_turns(ONE, ("a",), TurnOptions(min_residency_s=None, linger_s=0.03))
    bench.ask("b")
    bench.finish("a", duration_ms=1)
    bench.finish("b", duration_ms=3)
    bench.ask("a", "b")
    bench.passes(0.19)
    assert bench.state("b") == "ready"
    bench.passes(0.02)
    assert bench.state("b") == "draining"


def test_a_model_without_work_does_not_stay_its_turn() -> None:
    bench = taking_turns(ONE, ("a",), TurnOptions(min_residency_s=None, linger_s=0.03))
    bench.ask("b")
    bench.finish("a", duration_ms=100)
    bench.finish("b", duration_ms=400)
    bench.end("b")
    bench.ask("a")
    assert bench.wakes[-1] == pytest.approx(0.03)
    bench.passes(0.031)
    assert bench.under_way() == [("b", "cold")]


def test_an_idle_model_goes_at_once_in_spite_of_its_least_time() -> None:
    bench = taking_turns(ONE, ("a",), TurnOptions(min_residency_s=5.0, linger_s=0.0))
    bench.ask("b")
    bench.finish("a")
    bench.finish("b")
    bench.end("b")
    bench.ask("a")
    assert bench.under_way() == [("b", "cold")]


def test_a_model_that_has_just_finished_lingers_for_the_next_request() -> None:
    bench = taking_turns(ONE, ("a",), TurnOptions(linger_s=0.03))
    bench.run("a")
    bench.ask("a")
    bench.end("a", "a")
    bench.ask("b")
    assert bench.state("a") == "ready"
    assert bench.wakes[-1] == pytest.approx(0.03)
    assert bench.coordinator.may_drive("b") is False  # Somebody waits already.
    bench.passes(0.031)
    assert bench.under_way() == [("a", "cold")]


def test_lingering_ends_for_who_has_waited_long() -> None:
    bench = taking_turns(ONE, ("a",), TurnOptions(linger_s=0.03))
    bench.run("a", 60)
    bench.ask("b")
    bench.fleet["a"].cohort = 0
    assert bench.state("a") == "draining"
    other = taking_turns(ONE, ("a",), TurnOptions(linger_s=0.03))
    other.traffic.arrivals["b"] = [other.clock.now_s - 2.0]
    other.fleet["a"].last_use_s = other.clock.now_s
    other.coordinator.advance()
    assert other.under_way() == [("a", "cold")]


def test_a_drain_is_given_up_after_its_time_and_what_had_gone_comes_back() -> None:
    options = CoordinatorOptions(drain_timeout_s=10.0)
    bench = taking_turns(
        {"a": ("g0",), "b": ("g1",), "c": ("g0", "g1")}, ("a", "b"), options=options
    )
    bench.run("b")
    bench.ask("c", "c")
    bench.finish("a")
    bench.passes(9.9)
    assert bench.state("b") == "draining"
    bench.passes(0.2)
    assert [(model, type(error)) for model, error in bench.refused] == [("c", SwapDrainTimeout)] * 2
    assert bench.refused[0][1] is not bench.refused[1][1]
    assert bench.states() == {"a": "loading", "b": "ready", "c": "sleeping"}
    bench.finish("a")
    assert bench.state("a") == "ready"
    assert not bench.coordinator.arriving
    bench.end("b")
    bench.ask("c")
    assert sorted(bench.under_way()) == [("a", "cold"), ("b", "cold")]


def test_a_long_drain_is_told_every_half_minute(caplog: pytest.LogCaptureFixture) -> None:
    bench = taking_turns(ONE, ("a",))
    bench.run("a", 2)
    bench.ask("b")
    with caplog.at_level(logging.WARNING):
        for _ in range(65):
            bench.passes(1.0)
    warned = [record for record in caplog.records if record.message == "model still drains"]
    assert [(r.__dict__["model"], r.__dict__["in_flight"]) for r in warned] == [("a", 2)] * 2


def test_a_swap_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = taking_turns(ONE, ("a",))
    bench.run("a")
    with caplog.at_level(logging.INFO):
        bench.ask("b", "b")
        bench.passes(1.5)
        bench.end("a")
        bench.finish("a", duration_ms=70)
        bench.finish("b", duration_ms=300)
    (line,) = [record.__dict__ for record in caplog.records if record.message == "model came in"]
    told = {name: line[name] for name in ("model", "evicted", "evict_ms", "reinstate_ms")}
    assert told == {"model": "b", "evicted": "a:cold", "evict_ms": 70, "reinstate_ms": 300}
    assert (line["drain_ms"], line["waiters"]) == (1500, 2)


def test_one_transition_at_a_time() -> None:
    bench = taking_turns({"a": ("g0",), "b": ("g0",), "c": ("g1",), "d": ("g1",)}, ("a", "c"))
    bench.ask("b")
    bench.ask("d")
    assert bench.under_way() == [("a", "cold")]
    bench.finish("a")
    bench.finish("b")
    assert bench.under_way() == [("c", "cold")]


def test_after_the_shut_down_nothing_begins() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.coordinator.shut_down()
    bench.ask("b")
    assert bench.under_way() == []
    assert not bench.coordinator.may_drive("b")


def test_a_shut_down_in_mid_swap_lets_the_operation_end() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.ask("b")
    bench.coordinator.shut_down()
    bench.finish("a")
    assert bench.under_way() == []
    bench2 = taking_turns(ONE, ("a",))
    bench2.ask("b")
    bench2.finish("a")
    bench2.coordinator.shut_down()
    bench2.finish("b", error="the server is stopping")
    assert bench2.under_way() == []  # Nobody is brought back for a server that ends.


def test_a_transition_that_is_answered_twice_counts_once() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.ask("b")
    operation = bench.finish("a")
    from luce.placement.residency import Outcome

    bench.coordinator.finished(operation.number, Outcome(error="late"))
    assert bench.states() == {"a": "sleeping", "b": "loading"}


def test_a26_snapshots_that_were_lost_are_counted() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.ask("b")
    bench.finish("a", snapshots_lost=2)
    bench.finish("b")
    bench.end("b")
    bench.ask("a")
    bench.finish("b", snapshots_lost=1)
    assert (bench.fleet["a"].snapshots_lost, bench.fleet["b"].snapshots_lost) == (2, 1)


def test_a_failed_model_that_keeps_weights_stays_failed_when_it_must_drop_them() -> None:
    turns = TurnOptions(kept_weights=("a", "b"), linger_s=0.0)
    bench = taking_turns({"a": ("g0",), "b": ("g0",), "c": ("g0", "g1")}, ("a",), turns)
    bench.ask("b")
    bench.finish("a", retained_bytes=1)
    bench.finish("b")
    bench.end("b")
    bench.ask("a")
    bench.finish("b", retained_bytes=1)
    bench.finish("a", error="broken")
    bench.finish("b")  # What it kept is dropped for one more try.
    bench.finish("a", error="broken")
    bench.finish_all()
    assert bench.state("a") == "cooldown"
    bench.ask("c")
    bench.finish_all()
    assert bench.state("a") == "cooldown"
    bench.passes(31.0)
    assert bench.state("a") in ("sleeping", "unloaded")


def unload(bench: Bench, name: str) -> None:
    bench.coordinator.unload(name, lambda: ModelUnavailable("It was unloaded."))


def test_unloading_who_comes_back_ends_the_swap_that_failed() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.ask("b")
    bench.finish("a")
    bench.finish("b", error="broken")
    assert bench.under_way() == [("a", None)]
    unload(bench, "a")
    assert (bench.under_way(), bench.coordinator.arriving) == ([], frozenset())
    bench.ask("a")
    bench.finish("a")
    assert bench.served == ["a"]


def test_who_was_unloaded_after_giving_way_does_not_come_back() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.ask("b")
    bench.finish("a")
    unload(bench, "a")
    bench.finish("a", is_gone=True)
    bench.finish("b", error="broken")
    assert bench.under_way() == []
    assert (bench.state("a"), bench.coordinator.arriving) == ("unloaded", frozenset())


def test_unloading_who_comes_in_brings_back_who_gave_way() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.ask("b")
    bench.finish("a")
    unload(bench, "b")
    assert bench.under_way() == [("a", None)]
    bench.finish("a")
    assert (bench.states(), bench.coordinator.arriving) == (
        {"a": "ready", "b": "unloaded"},
        frozenset(),
    )
    bench.run("a")
    bench.ask("b")  # Nobody has gone for it yet.
    unload(bench, "b")
    assert (bench.state("a"), bench.coordinator.arriving) == ("ready", frozenset())


def test_nobody_comes_in_before_who_is_unloaded_has_gone() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.run("a")
    unload(bench, "a")
    bench.ask("b")
    assert bench.under_way() == []
    bench.end("a")
    assert bench.under_way() == [("a", "unload")]
    bench.finish("a", is_gone=True)
    assert bench.under_way() == [("b", None)]


def test_decisions_are_kept_with_what_they_were_made_from() -> None:
    bench = taking_turns(ONE, ("a",))
    bench.run("a")
    bench.ask("b")
    bench.end("a")
    bench.finish_all()
    records = bench.coordinator.chronicle.history.recent()
    assert [record.verdict for record in records] == ["make_room", "load", "ready"]
    assert records[0].victims == {"a": "cold"}
    assert records[0].inputs["a"] == {"state": "ready", "in_flight": 1, "waiting": 0}
    assert all(record.reason and not record.available for record in records)
    for _ in range(150):
        bench.end(bench.served[-1])
        bench.ask("a" if bench.state("b") == "ready" else "b")
        bench.finish_all()
    assert len(bench.coordinator.chronicle.history.recent()) == 100
