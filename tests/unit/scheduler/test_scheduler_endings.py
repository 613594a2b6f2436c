"""Scheduler: how sequences leave, and under pressure come back: exactly once each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from luce.protocol.sampling import SamplingParams
from luce.scheduler.outcome import Admitted, Busy
from luce.scheduler.plan import FAILED_TOKEN, StepPlan, StepResult
from luce.testing.plan_engine import generate_alone
from luce.testing.stepper import Stepper

MakeStepper = Callable[..., Stepper]

DEPTHS = pytest.mark.parametrize("depth", [0, 1])
VOCAB = 50


def _sampling(max_tokens: int = 5, **rest: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=0, **rest)  # type: ignore[arg-type]


def _prompt(num: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + num))


def _all_free(stepper: Stepper) -> bool:
    stats = stepper.scheduler.stats()
    return stats.kv.free_blocks + stats.kv.cached_blocks == stats.kv.total_blocks


# --- stop tokens ---------------------------------------------------------------------


@DEPTHS
def test_a_stop_token_ends_counts_and_is_no_text(make_stepper: MakeStepper, depth: int) -> None:
    alone, _ = generate_alone(_prompt(5), _sampling(20), 200, VOCAB)
    stop = alone[6]
    first = alone.index(stop)
    stepper = make_stepper(depth=depth)
    stepper.submit("a", _prompt(5), _sampling(20, stop_token_ids=(stop,)))
    stepper.run()
    assert stepper.outputs["a"] == alone[:first]
    assert stepper.endings["a"] == "stop"
    assert stepper.retired["a"].completion_tokens == first + 1
    assert _all_free(stepper)


def test_what_a_step_behind_computed_past_the_end_is_dropped(make_stepper: MakeStepper) -> None:
    alone, _ = generate_alone(_prompt(5), _sampling(20), 200, VOCAB)
    scheduler, engine = (stepper := make_stepper()).scheduler, stepper.engine
    scheduler.submit("a", _prompt(5), _sampling(20, stop_token_ids=(alone[0],)))
    first, second = scheduler.plan(), scheduler.plan()
    assert first is not None
    assert second is not None
    ended = scheduler.apply(first, engine.run(first))
    assert ended.deltas[0].finish == "stop"
    assert ended.retired == (), "the second step still writes to its blocks"
    assert scheduler.stats().running == 1
    settled = scheduler.apply(second, engine.run(second))
    assert settled.deltas == ()
    assert [gone.request_id for gone in settled.retired] == ["a"]
    scheduler.check_integrity()
    assert _all_free(stepper)


def test_length_is_known_ahead_so_no_step_is_wasted(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(depth=1)
    stepper.submit("a", _prompt(5), _sampling(3))
    stepper.run()
    assert len(stepper.plans) == 3


# --- cancel and fail -----------------------------------------------------------------


def test_cancel_of_an_idle_sequence_retires_at_once(make_stepper: MakeStepper) -> None:
    scheduler = (stepper := make_stepper()).scheduler
    scheduler.submit("a", _prompt(50), _sampling())
    stepper.step()
    scheduler.cancel("a")
    assert [(gone.request_id, gone.finish) for gone in scheduler.take_retired()] == [
        ("a", "cancelled")
    ]
    assert scheduler.take_retired() == ()
    assert not scheduler.has_work
    assert _all_free(stepper)


def test_cancel_under_way_waits_for_the_step(make_stepper: MakeStepper) -> None:
    scheduler, engine = (stepper := make_stepper()).scheduler, stepper.engine
    stepper.submit("a", _prompt(4), _sampling())
    stepper.submit("b", _prompt(4, 90), _sampling())
    first, second = scheduler.plan(), scheduler.plan()
    assert first is not None
    assert second is not None
    scheduler.cancel("a")
    scheduler.cancel("a")
    assert scheduler.take_retired() == ()
    outcome = scheduler.apply(first, engine.run(first))
    assert [delta.request_id for delta in outcome.deltas] == ["b"]
    assert outcome.retired == ()
    outcome = scheduler.apply(second, engine.run(second))
    assert [gone.finish for gone in outcome.retired] == ["cancelled"]
    stepper.run()
    assert stepper.endings == {"b": "length"}
    scheduler.check_integrity()


def test_cancel_of_a_stranger_is_ignored(make_stepper: MakeStepper) -> None:
    scheduler = make_stepper().scheduler
    scheduler.cancel("nobody")
    assert scheduler.take_retired() == ()


@DEPTHS
def test_a_neighbour_does_not_notice_a_cancel(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(depth=depth)
    stepper.submit("a", _prompt(9), _sampling(20))
    stepper.submit("b", _prompt(9), _sampling(20))
    for _ in range(5):
        stepper.step()
    stepper.scheduler.cancel("a")
    stepper.run()
    assert stepper.outputs["b"] == generate_alone(_prompt(9), _sampling(20), 200, VOCAB)[0]
    assert stepper.retired["a"].finish == "cancelled"


@DEPTHS
def test_a_hundred_aborts_leave_nothing_behind(make_stepper: MakeStepper, depth: int) -> None:
    """B53: aborted in prefill and in decode, the one row is free again each time."""
    stepper = make_stepper(depth=depth, max_rows=1, num_blocks=30, chunk=8)
    for order in range(100):
        assert isinstance(stepper.submit(f"r{order}", _prompt(40), _sampling(2000)), Admitted)
        for _ in range(order % 12):
            stepper.step()
        stepper.scheduler.cancel(f"r{order}")
        assert stepper.run() <= 2
    assert set(stepper.num_retired.values()) == {1}
    assert len(stepper.num_retired) == 100
    assert _all_free(stepper)


def _break_row(stepper: Stepper, monkeypatch: pytest.MonkeyPatch, row: int, step: int) -> None:
    """From `step` on, the logits of `row` are not finite numbers."""
    run = stepper.engine.run

    def broken(plan: StepPlan) -> StepResult:
        result = run(plan)
        rows = [item.row for item in plan.items if item.sample]
        ids = [
            FAILED_TOKEN if here == row and plan.step >= step else token_id
            for here, token_id in zip(rows, result.token_ids, strict=True)
        ]
        return StepResult(result.step, tuple(ids))

    monkeypatch.setattr(stepper.engine, "run", broken)


@DEPTHS
@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_failed_row_ends_its_sequence_alone(
    make_stepper: MakeStepper, monkeypatch: pytest.MonkeyPatch, depth: int, step: int
) -> None:
    stepper = make_stepper(depth=depth)
    stepper.submit("a", _prompt(4), _sampling(20))
    stepper.submit("b", _prompt(4, 90), _sampling(20))
    _break_row(stepper, monkeypatch, 0, step)
    stepper.run()
    gone = stepper.retired["a"]
    assert (gone.finish, gone.error) == ("error", "InternalError")
    assert "not finite numbers" in gone.detail
    assert gone.completion_tokens == len(stepper.outputs["a"]) == step - 1
    alone, _ = generate_alone(_prompt(4), _sampling(20), 200, VOCAB)
    assert stepper.outputs["a"] == alone[: step - 1]
    assert stepper.outputs["b"] == generate_alone(_prompt(4, 90), _sampling(20), 200, VOCAB)[0]
    assert stepper.endings == {"b": "length"}
    assert stepper.num_retired == {"a": 1, "b": 1}
    assert _all_free(stepper)


@DEPTHS
def test_nobody_finds_what_a_failed_row_computed(
    make_stepper: MakeStepper, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    stepper = make_stepper(depth=depth)
    stepper.submit("a", _prompt(13), _sampling(20))
    _break_row(stepper, monkeypatch, 0, 1)
    stepper.run()
    assert stepper.retired["a"].finish == "error"
    assert stepper.scheduler.stats().kv.cached_blocks == 0
    monkeypatch.undo()
    stepper.submit("again", _prompt(13), _sampling(20))
    stepper.run()
    assert stepper.retired["again"].cached_tokens == 0
    assert stepper.outputs["again"] == generate_alone(_prompt(13), _sampling(20), 200, VOCAB)[0]


def test_a_cancelled_sequence_whose_row_fails_stays_cancelled(make_stepper: MakeStepper) -> None:
    stepper = make_stepper()
    scheduler, engine = stepper.scheduler, stepper.engine
    stepper.submit("a", _prompt(8), _sampling(20))
    plan = scheduler.plan()
    assert plan is not None
    engine.run(plan)
    scheduler.cancel("a")
    outcome = scheduler.apply(plan, StepResult(plan.step, (FAILED_TOKEN,)))
    assert [gone.finish for gone in outcome.retired] == ["cancelled"]
    assert scheduler.stats().kv.cached_blocks == 0
    scheduler.check_integrity()


def test_fail_all_retires_everyone_once_and_the_scheduler_goes_on(
    make_stepper: MakeStepper,
) -> None:
    alone, _ = generate_alone(_prompt(4), _sampling(9), 200, VOCAB)
    stepper = make_stepper(depth=1)
    stepper.submit("ended", _prompt(4), _sampling(9, stop_token_ids=(alone[0],)))
    stepper.submit("running", _prompt(4, 60), _sampling(9))
    for _ in range(2):
        stepper.step()
    stepper.submit("fresh", _prompt(4, 90), _sampling(9))
    assert stepper.endings == {"ended": "stop"}
    assert stepper.retired == {}, "its overshoot is under way"
    stepper.scheduler.fail_all("InternalError", "step failed")
    stepper.forget_results()
    assert not stepper.scheduler.has_work
    stepper.step()
    finishes = {name: gone.finish for name, gone in stepper.retired.items()}
    assert finishes == {"ended": "stop", "running": "error", "fresh": "error"}
    assert set(stepper.num_retired.values()) == {1}
    assert _all_free(stepper)
    stepper.submit("next", _prompt(4), _sampling(9))
    stepper.run()
    assert stepper.outputs["next"] == alone


# --- pressure ------------------------------------------------------------------------


def _pressed(make_stepper: MakeStepper, depth: int) -> Stepper:
    """Three decoders that together need twice the pool."""
    stepper = make_stepper(depth=depth, num_blocks=11, prefix_cache=bool(depth))
    for order in range(3):
        assert isinstance(
            stepper.submit(f"r{order}", _prompt(6, 100 * order), _sampling(22)), Admitted
        )
    return stepper


@DEPTHS
def test_preemption_is_invisible(make_stepper: MakeStepper, depth: int) -> None:
    stepper = _pressed(make_stepper, depth)
    stepper.run()
    assert stepper.scheduler.stats().preemptions > 0
    for order in range(3):
        alone, finish = generate_alone(_prompt(6, 100 * order), _sampling(22), 40, VOCAB)
        assert (stepper.outputs[f"r{order}"], stepper.endings[f"r{order}"]) == (alone, finish)
        assert stepper.retired[f"r{order}"].cached_tokens == 0, "its own work saved it nothing"
    assert _all_free(stepper)


@DEPTHS
def test_the_newest_yields_and_the_oldest_finishes_first(
    make_stepper: MakeStepper, depth: int
) -> None:
    stepper = _pressed(make_stepper, depth)
    stepper.run()
    assert list(stepper.endings) == ["r0", "r1", "r2"]


@DEPTHS
def test_nobody_is_admitted_while_one_waits_to_be_recomputed(
    make_stepper: MakeStepper, depth: int
) -> None:
    stepper = _pressed(make_stepper, depth)
    while not stepper.scheduler.stats().preempted:
        stepper.step()
    answer = stepper.submit("late", (1,), _sampling(1))
    assert isinstance(answer, Busy)
    assert "preempted" in answer.detail
    stepper.run()
    assert isinstance(stepper.submit("late", (1,), _sampling(1)), Admitted)


@DEPTHS
def test_a_preempted_sequence_can_be_cancelled(make_stepper: MakeStepper, depth: int) -> None:
    stepper = _pressed(make_stepper, depth)
    while not stepper.scheduler.stats().preempted:
        stepper.step()
    stepper.scheduler.cancel("r2")
    assert stepper.scheduler.stats().preempted == 0
    stepper.run()
    assert stepper.retired["r2"].finish == "cancelled"
    assert stepper.num_retired == {"r0": 1, "r1": 1, "r2": 1}


def test_a_resumed_row_knows_its_history_and_its_place_in_the_random_stream(
    make_stepper: MakeStepper,
) -> None:
    stepper = _pressed(make_stepper, 0)
    stepper.run()
    starts = [
        start
        for plan in stepper.plans
        for start in plan.starts
        if start.history[:6] == _prompt(6, 200)
    ]
    assert len(starts) >= 2
    for start in starts:
        output = start.history[6:]
        assert list(output) == stepper.outputs["r2"][: len(output)]
        assert start.num_prompt_tokens == 6


def test_a_small_young_one_does_not_overtake_a_large_old_one(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(num_blocks=11, chunk=64, prefix_cache=False)
    for name, num, max_tokens in (("old", 4, 30), ("large", 20, 12), ("small", 2, 30)):
        assert isinstance(stepper.submit(name, _prompt(num), _sampling(max_tokens)), Admitted)
    while stepper.scheduler.stats().preempted < 2:
        stepper.step()
    kv = stepper.scheduler.stats().kv
    waiting = 2 + len(stepper.outputs["small"])
    assert kv.free_blocks > waiting // 4 + 1, "the small one would fit"
    stepper.run()
    assert list(stepper.endings) == ["old", "large", "small"]


def test_all_that_fit_come_back_in_one_step(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(num_blocks=10, chunk=64, prefix_cache=False)
    for name, num in (("a", 16), ("b", 4), ("c", 4)):
        assert isinstance(stepper.submit(name, _prompt(num), _sampling(20)), Admitted)
    while stepper.scheduler.stats().preempted < 2:
        stepper.step()
    stepper.scheduler.cancel("a")
    plan = stepper.step()
    assert plan is not None
    assert [start.history[:4] for start in plan.starts] == [_prompt(4), _prompt(4)]


@DEPTHS
def test_alone_in_a_small_pool_it_ends_with_length(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(depth=depth, num_blocks=4, max_ctx=1000)
    stepper.submit("a", _prompt(5), _sampling(500))
    stepper.run()
    gone = stepper.retired["a"]
    assert (gone.finish, gone.prompt_tokens + gone.completion_tokens) == ("length", 12)
    assert stepper.scheduler.stats().preemptions == 0


def test_check_integrity_finds_a_miscounted_step(make_stepper: MakeStepper) -> None:
    scheduler = make_stepper().scheduler
    scheduler.submit("a", _prompt(5), _sampling())
    scheduler.plan()
    scheduler.check_integrity()
    scheduler._under_way.clear()
    with pytest.raises(AssertionError, match="miscounted"):
        scheduler.check_integrity()
