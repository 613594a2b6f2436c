"""Admission by bytes, with fake workers, fake memory and a fake clock; rows of part B."""

from __future__ import annotations

import pytest

from luce.errors import InsufficientDeviceMemory, ModelExceedsDevice, ShuttingDown
from luce.placement.byte_room import ByteOptions
from luce.placement.residency import Outcome
from luce.testing.placement_bench import ByteBench

TWO_GPUS = {"g0": 100, "g1": 100}


def on(pool: str, size: int, *names: str) -> dict[str, dict[str, int]]:
    return {name: {pool: size} for name in names}


def test_b1_two_that_do_not_fit_together_never_load_together() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS, byte_options=ByteOptions(models_max=2))
    bench.ask("a")
    bench.passes(0.001)
    bench.ask("b")
    assert bench.under_way() == [("a", None)]
    bench.finish("a")
    assert bench.under_way() == []  # It serves who brought it in.
    bench.end("a")
    bench.passes(0.25)
    assert bench.under_way() == [("a", "cold")]
    bench.finish("a")
    bench.passes(0.25)
    assert bench.under_way() == [("b", None)]
    bench.finish("b")
    assert bench.served == ["a", "b"]
    assert bench.refused == []


def test_b2_a_busy_one_is_drained_and_not_killed() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS)
    bench.resident("a")
    bench.run("a", 3)
    bench.ask("b")
    assert bench.state("a") == "draining"
    bench.ask("a")  # It waits for another turn: nobody enters a model that drains.
    bench.end("a", "a")
    assert bench.under_way() == []
    bench.end("a")
    assert bench.under_way() == [("a", "cold")]
    bench.finish("a")
    bench.passes(0.25)
    bench.finish("b")
    assert bench.served[-1] == "b"
    assert bench.refused == []


def test_b3_models_of_different_devices_load_in_parallel() -> None:
    bench = ByteBench({"a": {"g0": 60}, "b": {"g1": 60}}, TWO_GPUS)
    bench.ask("a", "b")
    assert bench.under_way() == [("a", None), ("b", None)]


def test_b3_who_waits_for_room_on_one_device_holds_up_nobody_on_another() -> None:
    bench = ByteBench(on("g0", 60, "a", "b") | on("g1", 60, "c"), TWO_GPUS)
    bench.resident("a")
    bench.run("a")
    bench.ask("b", "c")
    assert bench.state("a") == "draining"
    assert bench.under_way() == [("c", None)]


def test_b4_pooled_room_does_not_count() -> None:
    plans = {"a": {"g0": 60}, "b": {"g1": 10}, "c": {"g0": 60}}
    bench = ByteBench(plans, TWO_GPUS)
    bench.resident("a", "b")
    bench.ask("c")
    assert bench.under_way() == [("a", "cold")]


def test_b5_the_oldest_stays_if_it_is_elsewhere() -> None:
    plans = {"old": {"g1": 90}, "new": {"g0": 60}, "c": {"g0": 60}}
    bench = ByteBench(plans, TWO_GPUS)
    bench.resident("old", "new")
    bench.ask("c")
    assert bench.under_way() == [("new", "cold")]


def test_b6_victims_come_from_the_short_device_alone() -> None:
    plans = {"a": {"g0": 30}, "b": {"g1": 60}, "c": {"g0": 60, "g1": 60}}
    bench = ByteBench(plans, TWO_GPUS)
    bench.resident("a", "b")
    bench.ask("c")
    assert bench.under_way() == [("b", "cold")]


def test_b7_one_that_covers_both_shortages_goes_alone() -> None:
    plans = {
        "a": {"g0": 40},
        "b": {"g1": 40},
        "both": {"g0": 50, "g1": 50},
        "c": {"g0": 55, "g1": 55},
    }
    bench = ByteBench(plans, TWO_GPUS)
    bench.resident("a", "b", "both")
    bench.ask("c")
    assert bench.under_way() == [("both", "cold")]


def test_b8_when_nothing_is_enough_nobody_goes() -> None:
    bench = ByteBench(on("g0", 30, "a", "b") | on("g0", 90, "c"), TWO_GPUS)
    bench.resident("a")
    bench.world.external["g0"] = 40
    bench.ask("c")
    assert bench.under_way() == []
    ((model, error),) = bench.refused
    assert (model, type(error)) == ("c", InsufficientDeviceMemory)
    assert error.retry_after_s == 5
    for number in ("90 B needed", "30 B available", "40 B of other programs", "0 B pinned"):
        assert number in error.message
    assert bench.state("a") == "ready"


def test_b9_larger_than_the_device_is_a_mistake_at_once() -> None:
    bench = ByteBench(on("g0", 60, "a") | on("g0", 96, "c"), TWO_GPUS, margin=5)
    bench.resident("a")
    bench.ask("c")
    ((_, error),) = bench.refused
    assert isinstance(error, ModelExceedsDevice)
    assert (error.status, error.code) == (400, "model_exceeds_device")
    assert bench.operations == []
    for _ in range(10):
        bench.passes(1.0)
    assert bench.operations == []


def test_b10_bytes_that_cannot_be_seen_yet_are_promised() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS)
    bench.ask("a")
    assert bench.world.free("g0") == 100
    bench.ask("b")
    for _ in range(8):
        bench.passes(0.25)
    assert bench.under_way() == [("a", None)]
    assert bench.ledger.state("g0").avail_bytes == 40


def test_b11_what_shows_already_is_not_counted_twice() -> None:
    bench = ByteBench(on("g0", 60, "a") | on("g0", 35, "c"), TWO_GPUS)
    bench.attributes = True
    bench.ask("a")
    bench.allocate("a", 0.5)
    bench.passes(0.25)
    bench.sample(("g0",))
    state = bench.ledger.state("g0")
    assert (state.pending_bytes, state.ours_bytes, state.external_bytes) == (0 + 30, 30, 0)
    bench.ask("c")
    assert ("c", None) in bench.under_way()


def test_b12_a_load_that_fails_gives_its_promise_back_once() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS)
    bench.ask("a")
    bench.passes(0.01)
    bench.ask("b")
    bench.finish("a", error="the file is broken", is_gone=True)
    assert bench.under_way() == [("b", None)]
    assert bench.state("a") == "cooldown"
    assert [model for model, _ in bench.refused] == ["a"]


def test_b13_b14_an_end_that_is_told_twice_counts_once() -> None:
    bench = ByteBench(on("g0", 60, "a"), TWO_GPUS)
    bench.ask("a")
    operation = bench.finish("a")
    for outcome in (Outcome(), Outcome(error="it died", is_gone=True)):
        bench.coordinator.finished(operation.number, outcome)
    bench.ledger.check()
    assert bench.state("a") == "ready"
    assert bench.ledger.state("g0").ours_bytes == 60


def test_b15_a_process_that_cannot_be_started_is_rolled_back() -> None:
    bench = ByteBench(on("g0", 60, "a"), TWO_GPUS)
    bench.ask("a")
    bench.finish("a", error="no descriptors left", is_gone=True)
    assert bench.ledger.state("g0").pending_bytes == 0
    assert bench.fleet["a"].kept is None
    bench.passes(30.0)
    bench.ask("a")
    assert bench.under_way() == [("a", None)]


def test_b16_a_victim_that_got_work_meanwhile_is_not_chosen() -> None:
    bench = ByteBench(on("g0", 45, "a", "b") | on("g0", 50, "c"), TWO_GPUS)
    bench.resident("a", "b")
    looked: list[str] = []

    def work_comes(devices: tuple[str, ...]) -> None:
        bench.sample(devices)
        if not looked:
            looked.append("a")
            bench.run("a")  # The oldest gets a request while the driver is asked.

    bench.on_probe = work_comes
    bench.ask("c")
    assert bench.under_way() == [("b", "cold")]
    assert bench.state("a") == "ready"


def test_b17_a_request_for_a_model_that_drains_waits_for_its_next_load() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS)
    bench.resident("a")
    bench.run("a")
    bench.ask("b")
    bench.ask("a")
    served = list(bench.served)
    bench.end("a")
    bench.finish("a")
    bench.passes(0.25)
    bench.finish("b")
    assert bench.served == [*served, "b"]
    bench.end("b")
    bench.passes(0.25)
    bench.finish("b")
    bench.passes(0.25)
    bench.finish("a")
    assert bench.served == [*served, "b", "a"]


def test_b18_who_caused_a_load_is_served_before_the_next_decision() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS)
    bench.ask("a", "b")
    bench.finish("a")
    assert bench.served == ["a"]
    assert bench.state("a") == "draining"  # At work, and on its way out.
    bench.end("a")
    assert bench.under_way() == [("a", "cold")]


def test_b19_two_at_once_with_room_for_one_are_both_served() -> None:
    options = ByteOptions(models_max=1)
    bench = ByteBench(on("g0", 20, "a", "b", "c"), TWO_GPUS, byte_options=options)
    bench.resident("a")
    bench.ask("b", "c")
    for _ in range(20):
        bench.finish_all()
        for name, count in dict(bench.traffic.running).items():
            bench.end(*[name] * count)
        bench.passes(0.25)
    assert bench.served == ["a", "b", "c"]
    assert bench.refused == []


def test_b20_many_requests_for_few_places_all_end() -> None:
    options = ByteOptions(models_max=2)
    names = ("a", "b", "c", "d", "e")
    bench = ByteBench(on("g0", 40, *names), TWO_GPUS, byte_options=options)
    num_loads = 0
    for index in range(50):
        bench.ask(names[index * 7 % 5])
        bench.passes(0.01)
    for _ in range(200):
        for operation in list(bench.operations):
            num_loads += operation.kind == "load"
            bench.finish(operation.model)
            assert bench.world.used("g0") <= 100
        for name, count in dict(bench.traffic.running).items():
            bench.end(*[name] * count)
        bench.passes(0.25)
    assert sorted(bench.served) == sorted(names * 10)
    assert num_loads <= 50 // bench.traffic.slots
    assert bench.refused == []


def test_b21_memory_that_does_not_come_back_ends_in_numbers_not_in_a_wait() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS)
    bench.resident("a")
    bench.ask("b")
    operation = bench.operation("a")
    assert operation.patience_s == 2.0
    bench.world.external["g0"] = 60  # The process is gone, what it had is not free.
    bench.finish("a", is_gone=True)
    bench.passes(0.25)
    ((_, error),) = bench.refused
    assert isinstance(error, InsufficientDeviceMemory)
    assert "60 B of other programs" in error.message
    assert bench.state("b") == "unloaded"


def test_b23_memory_taken_between_look_and_load_fails_the_load_alone() -> None:
    bench = ByteBench({"a": {"g0": 60}, "n": {"g0": 30}}, TWO_GPUS)
    bench.resident("n")
    bench.ask("a")
    bench.world.external["g0"] = 20
    bench.finish("a", error="out of memory", is_out_of_memory=True, is_gone=True)
    assert bench.under_way() == [("n", "cold")]  # Once, who is idle there gives way.
    bench.finish("n")
    bench.passes(0.25)
    bench.finish("a", error="out of memory", is_out_of_memory=True, is_gone=True)
    assert bench.state("a") == "cooldown"
    assert bench.operations == []


def test_b23_what_shows_before_the_load_counts() -> None:
    bench = ByteBench(on("g0", 60, "a"), TWO_GPUS)

    def taken(devices: tuple[str, ...]) -> None:
        bench.world.external["g0"] = 50
        bench.sample(devices)

    bench.on_probe = taken
    bench.ask("a")
    assert bench.operations == []
    assert [model for model, _ in bench.refused] == ["a"]


def test_b24_external_memory_evicts_nobody_in_vain() -> None:
    bench = ByteBench(on("g0", 10, "a") | on("g0", 60, "b"), TWO_GPUS)
    bench.resident("a")
    bench.world.external["g0"] = 50
    bench.ask("b")
    assert bench.operations == []
    assert "50 B of other programs" in bench.refused[0][1].message


def test_b25_memory_that_others_free_is_seen_while_somebody_waits() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), {"g0": 130})
    bench.world.external["g0"] = 30
    bench.ask("a")
    bench.ask("b")
    assert bench.state("b") == "queued"
    bench.world.external["g0"] = 0
    bench.passes(0.25)
    assert ("b", None) in bench.under_way()


def test_b26_memory_freed_while_we_look_is_no_negative_number() -> None:
    bench = ByteBench(on("g0", 60, "a"), {"g0": 130})
    bench.resident("a")
    bench.world.real["a"] = {"g0": 10}  # Less than it counts with.
    bench.sample(("g0",))
    state = bench.ledger.state("g0")
    assert (state.external_bytes, state.avail_bytes) == (0, 70)


@pytest.mark.parametrize("policy", ["gate", "proceed"])
def test_b27_a_driver_that_does_not_answer(policy: str) -> None:
    options = ByteOptions(policy=policy)  # type: ignore[arg-type]
    bench = ByteBench(on("g0", 60, "a"), TWO_GPUS, byte_options=options)
    bench.world.silent.add("g0")
    bench.ask("a")
    if policy == "gate":
        assert "unknown available" in bench.refused[0][1].message
        assert bench.operations == []
    else:
        assert bench.under_way() == [("a", None)]


def test_b27_its_last_answer_counts_for_a_second() -> None:
    bench = ByteBench(on("g0", 60, "a"), TWO_GPUS)
    bench.sample(("g0",))
    bench.world.silent.add("g0")
    bench.passes(0.9)
    bench.ask("a")
    assert bench.under_way() == [("a", None)]


def test_b29_a_device_that_is_gone_leaves_the_others_alone() -> None:
    bench = ByteBench({"a": {"g0": 60}, "b": {"g1": 60}}, TWO_GPUS)
    bench.ask("a")
    bench.world.silent.add("g0")
    bench.finish("a", error="the device is lost", is_gone=True)
    assert bench.ledger.state("g0").pending_bytes == 0
    bench.resident("b")
    assert bench.state("b") == "ready"
    bench.passes(30.0)
    bench.ask("a")
    assert isinstance(bench.refused[-1][1], InsufficientDeviceMemory)


@pytest.mark.parametrize("first", ["known", "unknown"])
def test_b30_a_model_nobody_can_plan_has_its_device_for_itself(first: str) -> None:
    plans = {"known": {"g0": 10}, "unknown": {"g0": 100}}
    options = ByteOptions(exclusive=frozenset({"unknown"}))
    bench = ByteBench(plans, TWO_GPUS, byte_options=options)
    second = "unknown" if first == "known" else "known"
    bench.ask(first)
    bench.passes(0.01)
    bench.ask(second)
    assert bench.under_way() == [(first, None)]
    bench.finish(first)
    bench.end(first)
    bench.passes(0.25)
    assert bench.under_way() == [(first, "cold")]
    bench.finish(first)
    bench.passes(0.25)
    assert bench.under_way() == [(second, None)]


def test_b35_a_pinned_model_stays() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS, pinned=("a",))
    bench.resident("a")
    bench.ask("b")
    ((_, error),) = bench.refused
    assert (error.status, type(error)) == (503, InsufficientDeviceMemory)
    assert "60 B pinned" in error.message
    assert bench.state("a") == "ready"


def test_b35_of_two_that_could_give_way_the_pinned_one_stays() -> None:
    bench = ByteBench(on("g0", 30, "old", "new") | on("g0", 60, "c"), TWO_GPUS, pinned=("old",))
    bench.resident("old", "new")
    bench.ask("c")
    assert bench.under_way() == [("new", "cold")]


def test_b36_a_load_that_is_not_wanted_any_more_is_cancelled() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS)
    bench.ask("a")
    bench.passes(0.01)
    bench.ask("b")
    bench.coordinator.unload("a", lambda: ShuttingDown("It is being unloaded."))
    assert [op.model for op in bench.abandoned] == ["a"]
    assert [model for model, _ in bench.refused] == ["a"]
    bench.passes(0.25)
    assert bench.under_way() == [("b", None)]
    bench.coordinator.finished(bench.abandoned[0].number, Outcome())
    assert bench.state("a") == "unloaded"


def test_b36_a_resident_that_is_unloaded_finishes_what_runs() -> None:
    bench = ByteBench(on("g0", 60, "a"), TWO_GPUS)
    bench.resident("a")
    bench.run("a")
    bench.coordinator.unload("a", lambda: ShuttingDown("It is being unloaded."))
    assert bench.state("a") == "draining"
    bench.end("a")
    assert bench.under_way() == [("a", "unload")]
    bench.finish("a")
    assert bench.state("a") == "unloaded"


def test_b36_a_sleeper_that_is_unloaded_keeps_not_even_its_process() -> None:
    bench = ByteBench(on("g0", 60, "a"), TWO_GPUS)
    bench.resident("a")
    bench.coordinator.fleet.leave("a", "cold", 1.0)
    bench.coordinator.advance()
    bench.finish("a")
    assert bench.state("a") == "sleeping"
    bench.coordinator.unload("a", lambda: ShuttingDown("It is being unloaded."))
    assert bench.under_way() == [("a", "unload")]
    bench.finish("a", is_gone=True)
    assert bench.state("a") == "unloaded"
    bench.coordinator.unload("a", lambda: ShuttingDown("It is being unloaded."))
    assert bench.under_way() == []


def test_b37_who_leaves_the_queue_spares_the_victims() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS)
    bench.resident("a")
    bench.run("a")
    bench.ask("b")
    assert bench.state("a") == "draining"
    bench.leave("b")
    assert bench.states() == {"a": "ready", "b": "unloaded"}
    assert not bench.coordinator.arriving
    bench.end("a")
    assert bench.operations == []


def test_b38_a_load_goes_on_without_its_client() -> None:
    bench = ByteBench(on("g0", 60, "a"), TWO_GPUS)
    bench.ask("a")
    bench.leave("a")
    assert bench.under_way() == [("a", None)]
    bench.finish("a")
    assert bench.state("a") == "ready"
    assert bench.traffic.in_flight("a") == 0


def test_b39_waking_up_is_an_admission() -> None:
    bench = ByteBench({"a": {"g0": 60}, "b": {"g0": 55}}, TWO_GPUS)
    bench.resident("a")
    bench.ask("b")
    bench.finish("a", retained_bytes=10)
    bench.passes(0.25)
    assert bench.under_way() == [("b", None)]
    bench.ask("a")
    bench.passes(0.25)
    assert bench.under_way() == [("b", None)]  # 50 more bytes for a, of which 35 are left.
    assert bench.ledger.needed_by("a") == {"g0": 50}
    assert bench.ledger.state("g0").avail_bytes == 35


def test_a_sleeper_is_ended_when_what_it_keeps_is_in_the_way() -> None:
    bench = ByteBench({"a": {"g0": 60}, "b": {"g0": 55}, "c": {"g0": 95}}, TWO_GPUS)
    bench.resident("a")
    bench.ask("b")
    bench.finish("a", retained_bytes=10)
    bench.passes(0.25)
    bench.finish("b")
    bench.end("b")
    bench.passes(5.0)
    bench.ask("c")
    assert sorted(bench.under_way()) == [("a", "unload"), ("b", "cold")]
    bench.finish("a", is_gone=True)
    bench.finish("b")
    bench.passes(0.25)
    assert bench.under_way() == [("c", None)]


def test_b40_one_model_is_loaded_once() -> None:
    bench = ByteBench(on("g0", 20, "a"), TWO_GPUS)
    bench.ask("a", "a", "a")
    assert bench.under_way() == [("a", None)]
    bench.finish("a")
    assert bench.served == ["a"] * 3


def test_b42_a_shut_down_begins_nothing_and_forgets_nothing() -> None:
    bench = ByteBench(on("g0", 60, "a", "b") | on("g1", 60, "c"), TWO_GPUS)
    bench.ask("a", "c")
    bench.passes(0.01)
    bench.ask("b")
    bench.coordinator.shut_down()
    bench.finish("a")
    bench.finish("c", error="the server is stopping", is_gone=True)
    bench.end("a")
    bench.passes(1.0)
    assert bench.operations == []


def test_b44_one_pool_carries_device_and_host() -> None:
    bench = ByteBench({"a": {"host": 70}, "b": {"host": 40}}, {"host": 100})
    bench.resident("a")
    bench.world.external["host"] = 0
    bench.ask("b")
    assert bench.under_way() == [("a", "cold")]


@pytest.mark.parametrize("policy", ["gate", "proceed"])
def test_b46_what_loads_already_is_waited_for_whatever_the_policy(policy: str) -> None:
    options = ByteOptions(policy=policy)  # type: ignore[arg-type]
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS, byte_options=options)
    bench.ask("a")
    bench.passes(0.01)
    bench.ask("b")
    assert bench.under_way() == [("a", None)]
    assert bench.state("b") == "queued"


def test_proceed_loads_in_spite_of_others_memory() -> None:
    bench = ByteBench(on("g0", 60, "a"), TWO_GPUS, byte_options=ByteOptions(policy="proceed"))
    bench.world.external["g0"] = 90
    bench.ask("a")
    assert bench.under_way() == [("a", None)]
    last = bench.coordinator.chronicle.history.recent()[-1]
    assert (last.verdict, "proceeds although 50 B are missing" in last.reason) == ("load", True)
    bench.finish("a", error="out of memory", is_out_of_memory=True, is_gone=True)
    assert bench.state("a") == "cooldown"


def test_b49_a_plan_that_ran_out_of_memory_is_larger_the_next_time() -> None:
    bench = ByteBench(on("g0", 50, "a"), TWO_GPUS)
    for planned in (55, 60, 60):
        bench.ask("a")
        bench.finish("a", error="out of memory", is_out_of_memory=True, is_gone=True)
        assert bench.ledger.plan_of("a") == {"g0": planned}
        bench.passes(400.0)


def test_cooling_down_takes_longer_each_time_and_not_for_ever() -> None:
    bench = ByteBench(on("g0", 50, "a"), TWO_GPUS)
    for pause_s in (30, 60, 120, 240, 300, 300):
        bench.ask("a")
        bench.finish("a", error="broken", is_gone=True)
        bench.passes(pause_s - 0.1)
        assert bench.state("a") == "cooldown"
        bench.passes(0.2)
        assert bench.state("a") == "unloaded"
    bench.ask("a")
    bench.finish("a")
    assert bench.fleet["a"].num_failures == 0


def test_who_is_idle_too_long_gives_its_memory_back() -> None:
    bench = ByteBench(on("g0", 20, "a", "b", "p"), TWO_GPUS, pinned=("p",), idle_unload_s=60.0)
    bench.resident("p", "a", "b")
    bench.run("b")
    bench.passes(35.0)
    assert bench.under_way() == []
    bench.passes(10.0)
    assert bench.under_way() == [("a", "cold")]
    bench.finish("a")
    bench.passes(600.0)  # While something runs on b.
    assert bench.states() == {"a": "sleeping", "b": "ready", "p": "ready"}
    bench.end("b")
    bench.passes(59.0)
    assert bench.under_way() == []
    bench.passes(1.0)
    assert bench.under_way() == [("b", "cold")]


def test_who_waits_longer_keeps_its_memory_from_a_smaller_one() -> None:
    bench = ByteBench(on("g0", 60, "a") | on("g0", 80, "b") | on("g0", 30, "c"), TWO_GPUS)
    bench.resident("a")
    bench.run("a")
    bench.ask("b")
    bench.passes(0.01)
    bench.ask("c")  # It would fit now; b would then wait for two.
    assert bench.under_way() == []
    assert bench.state("c") == "queued"


def test_a_preloaded_model_needs_no_request() -> None:
    bench = ByteBench(on("g0", 60, "a"), TWO_GPUS)
    bench.coordinator.want("a")
    assert bench.under_way() == [("a", None)]
    bench.finish("a")
    assert not bench.coordinator.is_wanted("a")
    assert bench.state("a") == "ready"


def test_b33_a_draft_and_an_adapter_elsewhere_count_where_they_are() -> None:
    """Shares of one model on two devices: each device's is missed there, and given back there."""
    plans = {"m": {"g0": 60, "g1": 30}, "a": {"g0": 30}, "b": {"g1": 80}}
    bench = ByteBench(plans, TWO_GPUS)
    bench.resident("a", "m")
    assert [bench.ledger.state(pool).ours_bytes for pool in ("g0", "g1")] == [90, 30]
    bench.ask("b")
    assert bench.under_way() == [("m", "cold")]
    bench.finish("m", is_gone=True)
    bench.passes(0.25)
    bench.finish("b")
    bench.end("b")
    assert [bench.ledger.state(pool).ours_bytes for pool in ("g0", "g1")] == [30, 80]
    bench.ask("m")
    assert bench.under_way() == [("b", "cold")]


def test_b41_a_load_that_is_taken_out_leaves_nothing_made_up() -> None:
    bench = ByteBench(on("g0", 60, "a", "b"), TWO_GPUS)
    bench.ask("a", "b")
    bench.allocate("a", 0.5)
    operation = bench.operation("a")
    bench.coordinator.unload("a", lambda: ShuttingDown("stopping"))
    assert bench.abandoned == [operation]
    assert [model for model, _ in bench.refused] == ["a"]
    bench.world.real.pop("a")  # Its process is gone.
    bench.passes(0.25)
    assert bench.under_way() == [("b", None)]
    bench.coordinator.finished(operation.number, Outcome())  # It had just come in.
    assert bench.state("a") == "unloaded"
    assert (bench.ledger.held_by("a"), set(bench.fleet.records)) == ({}, {"a", "b"})


def test_b45_what_a_resident_grows_to_counts_as_its_own() -> None:
    """In its first long prompt it ran out of memory, or nearly: what it has is not free."""
    bench = ByteBench(on("g0", 60, "a") | on("g0", 35, "c") | on("g0", 20, "d"), TWO_GPUS)
    bench.attributes = True
    bench.resident("a")
    bench.run("a")
    bench.world.real["a"] = {"g0": 75}
    bench.ask("d")
    state = bench.ledger.state("g0")
    assert (state.ours_bytes, state.external_bytes) == (75, 0)
    assert bench.under_way() == [("d", None)]
    bench.finish("d")
    bench.end("d", "a")
    bench.passes(0.25)
    bench.ask("c")
    assert bench.under_way() == [("a", "cold")]  # Longest unused, and enough by itself.


def test_b50_two_servers_on_one_host_are_others_to_each_other() -> None:
    first, second = (ByteBench(on("g0", 60, "a"), TWO_GPUS) for _ in range(2))
    for one, other in ((first, second), (second, first)):

        def see(devices: tuple[str, ...], one: ByteBench = one, other: ByteBench = other) -> None:
            one.world.external["g0"] = other.world.used("g0")
            one.sample(devices)

        one.on_probe = see
    first.resident("a")
    second.ask("a")
    ((_, error),) = second.refused
    assert "60 B of other programs" in error.message
    assert second.operations == []
    second.world.external["g0"] = 0
    first.coordinator.unload("a", lambda: ShuttingDown("stopping"))
    first.finish("a", is_gone=True)
    second.clock.now_s += 1
    second.ask("a")
    assert second.under_way() == [("a", None)]
    second.finish("a")
    first.clock.now_s += 1
    first.ask("a")
    assert first.operations == []
    assert [model for model, _ in first.refused] == ["a"]
