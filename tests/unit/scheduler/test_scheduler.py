"""Scheduler: admission, continuous batching, endings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from luce.protocol.sampling import SamplingParams
from luce.scheduler.outcome import Admitted, Busy, NeverFits, Rejected
from luce.scheduler.plan import StepResult
from luce.testing.plan_engine import generate_alone
from luce.testing.stepper import Stepper

MakeStepper = Callable[..., Stepper]

DEPTHS = pytest.mark.parametrize("depth", [0, 1])
VOCAB = 50


def _sampling(max_tokens: int = 5, seed: int | None = 0, **rest: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=seed, **rest)  # type: ignore[arg-type]


def _prompt(num: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + num))


def _all_free(stepper: Stepper) -> bool:
    stats = stepper.scheduler.stats()
    return stats.kv.free_blocks + stats.kv.cached_blocks == stats.kv.total_blocks


# --- admission -----------------------------------------------------------------------


def test_refuses_an_empty_prompt(make_stepper: MakeStepper) -> None:
    answer = make_stepper().submit("a", (), _sampling())
    assert isinstance(answer, Rejected)
    assert "empty" in answer.detail


def test_refuses_an_id_that_is_in_use_but_not_one_that_was(make_stepper: MakeStepper) -> None:
    stepper = make_stepper()
    assert isinstance(stepper.submit("a", _prompt(3), _sampling()), Admitted)
    answer = stepper.submit("a", _prompt(3), _sampling())
    assert isinstance(answer, Rejected)
    assert "'a'" in answer.detail
    stepper.run()
    stepper.endings.clear()
    assert isinstance(stepper.submit("a", _prompt(3), _sampling()), Admitted)
    stepper.run()
    assert stepper.num_retired["a"] == 2


def test_refuses_to_generate_nothing(make_stepper: MakeStepper) -> None:
    assert isinstance(make_stepper().submit("a", (1,), _sampling(max_tokens=0)), Rejected)


@pytest.mark.parametrize(
    ("max_ctx", "num_blocks", "most"), [(20, 100, 19), (500, 6, 19), (20, 6, 19), (17, 6, 16)]
)
def test_a_prompt_that_can_never_fit_says_so_with_both_numbers(
    make_stepper: MakeStepper, max_ctx: int, num_blocks: int, most: int
) -> None:
    stepper = make_stepper(max_ctx=max_ctx, num_blocks=num_blocks)
    answer = stepper.submit("a", _prompt(most + 1), _sampling())
    assert isinstance(answer, NeverFits)
    assert (answer.prompt_tokens, answer.max_prompt_tokens) == (most + 1, most)
    assert str(most + 1) in answer.detail
    assert str(most) in answer.detail
    assert isinstance(stepper.submit("a", _prompt(most), _sampling()), Admitted)
    stepper.run()
    assert stepper.endings["a"] == "length"
    assert len(stepper.outputs["a"]) == 1


def test_prompts_fill_a_step_until_it_is_planned(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(chunk=16)
    for number in range(4):
        assert stepper.scheduler.fills_step == (number >= 2)
        stepper.submit(f"r{number}", _prompt(8), _sampling())
    stepper.step()
    assert not stepper.scheduler.fills_step
    stepper.run()


def test_running_sequences_get_their_headroom_once_a_step(
    make_stepper: MakeStepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper = make_stepper()
    roster, calls = stepper.scheduler._roster, []
    top_up = roster.top_up
    monkeypatch.setattr(roster, "top_up", lambda: calls.append(1) or top_up())
    for number in range(3):
        stepper.submit(f"r{number}", _prompt(3), _sampling())
    assert len(calls) == 1
    stepper.step()
    stepper.submit("r3", _prompt(3), _sampling())
    assert len(calls) == 2
    stepper.run()


def test_a_misfit_does_not_hold_up_the_short_ones(make_stepper: MakeStepper) -> None:
    """B55: a prompt larger than the pool is refused for good, others go on."""
    stepper = make_stepper(num_blocks=11, max_ctx=400)
    assert isinstance(stepper.submit("short", _prompt(3), _sampling()), Admitted)
    assert isinstance(stepper.submit("misfit", _prompt(60), _sampling()), NeverFits)
    stepper.submit("rambling", _prompt(3, 50), _sampling(max_tokens=1000))
    stepper.run()
    assert stepper.endings == {"short": "length", "rambling": "length"}
    assert len(stepper.outputs["rambling"]) == 40 - 3


def test_busy_without_a_row(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(max_rows=1)
    stepper.submit("a", _prompt(3), _sampling())
    answer = stepper.submit("b", _prompt(3), _sampling())
    assert isinstance(answer, Busy)
    assert "row" in answer.detail


def test_busy_without_blocks_for_the_prompt_and_one_more(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(num_blocks=6)
    assert isinstance(stepper.submit("a", _prompt(8), _sampling(50)), Admitted)
    answer = stepper.submit("b", _prompt(8, 50), _sampling(50))
    assert isinstance(answer, Busy)
    assert "prompt" in answer.detail
    assert isinstance(stepper.submit("c", _prompt(4, 50), _sampling(50)), Admitted)


def test_decoders_get_their_headroom_before_a_newcomer_gets_blocks(
    make_stepper: MakeStepper,
) -> None:
    stepper = make_stepper(num_blocks=7, prefix_cache=False)
    stepper.submit("a", _prompt(8), _sampling(50))
    stepper.step()
    for _ in range(4):
        stepper.step()
    # a: 12 tokens in its 3 blocks; a fourth is its headroom, and two are left.
    assert isinstance(stepper.submit("b", _prompt(8, 50), _sampling(50)), Busy)
    held = 6 - stepper.scheduler.stats().kv.free_blocks
    assert held == 4
    assert isinstance(stepper.submit("c", _prompt(4, 50), _sampling(50)), Admitted)
    answer = stepper.submit("d", _prompt(1, 90), _sampling(1))
    assert isinstance(answer, Busy)


def test_headroom_that_cannot_be_had_refuses_the_newcomer(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(num_blocks=5, prefix_cache=False)
    stepper.submit("a", _prompt(4), _sampling(50))
    stepper.submit("b", _prompt(4, 50), _sampling(50))
    for _ in range(2):
        stepper.step()
    answer = stepper.submit("c", _prompt(1, 90), _sampling(1))
    assert isinstance(answer, Busy)
    assert "needed by the sequences that run" in answer.detail


def test_max_tokens_is_a_cap_not_a_demand(make_stepper: MakeStepper) -> None:
    """B09, B57: a huge or absent cap ends at the context, it does not refuse the prompt."""
    stepper = make_stepper(max_ctx=30)
    stepper.submit("a", _prompt(10), _sampling(max_tokens=65_536))
    stepper.run()
    gone = stepper.retired["a"]
    assert gone.finish == "length"
    assert gone.prompt_tokens + gone.completion_tokens == 30


# --- steps ---------------------------------------------------------------------------


@DEPTHS
@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_ids_do_not_depend_on_batch_chunk_or_depth(
    make_stepper: MakeStepper, depth: int, chunk: int
) -> None:
    stepper = make_stepper(depth=depth, chunk=chunk, quantum=3)
    prompts = {"a": _prompt(5), "b": _prompt(21, 7), "c": _prompt(1, 3), "d": _prompt(21, 7)}
    for order, (name, prompt) in enumerate(prompts.items()):
        stepper.submit(name, prompt, _sampling(12, seed=order))
    stepper.run()
    for order, (name, prompt) in enumerate(prompts.items()):
        alone, finish = generate_alone(prompt, _sampling(12, seed=order), 200, VOCAB)
        assert (stepper.outputs[name], stepper.endings[name]) == (alone, finish)
    assert _all_free(stepper)


@DEPTHS
def test_a_long_prompt_never_delays_a_decoder(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(depth=depth, chunk=8)
    stepper.submit("decoder", _prompt(4), _sampling(100))
    stepper.step()
    stepper.submit("long", _prompt(150, 7), _sampling(5))
    decoder_row = stepper.plans[0].items[0].row
    while "long" not in stepper.endings:
        plan = stepper.step()
        assert plan is not None
        assert plan.items[0].row == decoder_row
        assert plan.items[0].num_tokens == 1
    assert stepper.engine.max_prefill_tokens == 8


def test_a_long_prompt_does_not_hold_up_a_short_one(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(chunk=8)
    stepper.submit("long", _prompt(150), _sampling(5))
    stepper.step()
    stepper.submit("short", _prompt(6, 500), _sampling(1))
    for _ in range(2):
        stepper.step()
    assert "short" in stepper.endings
    assert stepper.outputs["long"] == []


def test_the_step_behind_decodes_from_a_token_nobody_has_seen(make_stepper: MakeStepper) -> None:
    stepper = make_stepper()
    scheduler, engine = stepper.scheduler, stepper.engine
    scheduler.submit("a", _prompt(4), _sampling())
    first = scheduler.plan()
    second = scheduler.plan()
    assert first is not None
    assert second is not None
    (item,) = second.items
    assert (item.start, item.token_ids, item.sample, item.output_index) == (4, (), True, 1)
    assert second.starts == ()
    outcomes = [scheduler.apply(plan, engine.run(plan)) for plan in (first, second)]
    ids = [token_id for outcome in outcomes for token_id in outcome.deltas[0].token_ids]
    assert ids == generate_alone(_prompt(4), _sampling(), 200, VOCAB)[0][:2]


def test_no_third_step_before_the_first_is_applied(make_stepper: MakeStepper) -> None:
    scheduler = make_stepper().scheduler
    scheduler.submit("a", _prompt(4), _sampling())
    scheduler.plan()
    scheduler.plan()
    with pytest.raises(AssertionError, match="apply a step"):
        scheduler.plan()


def test_nothing_to_do_is_none(make_stepper: MakeStepper) -> None:
    scheduler = make_stepper().scheduler
    assert (scheduler.plan(), scheduler.has_work) == (None, False)
    scheduler.submit("a", _prompt(4), _sampling(max_tokens=1))
    assert scheduler.plan() is not None
    assert (scheduler.plan(), scheduler.has_work) == (None, True), "its only token is under way"


def test_results_are_applied_in_order_and_whole(make_stepper: MakeStepper) -> None:
    scheduler = make_stepper().scheduler
    scheduler.submit("a", _prompt(4), _sampling())
    first, second = scheduler.plan(), scheduler.plan()
    assert first is not None
    assert second is not None
    with pytest.raises(AssertionError, match="in the order"):
        scheduler.apply(second, StepResult(2, (1,)))


@pytest.mark.parametrize("result", [StepResult(9, (1,)), StepResult(1, (1, 2))])
def test_a_result_of_another_shape_is_our_bug(
    make_stepper: MakeStepper, result: StepResult
) -> None:
    scheduler = make_stepper().scheduler
    scheduler.submit("a", _prompt(4), _sampling())
    plan = scheduler.plan()
    assert plan is not None
    with pytest.raises(AssertionError):
        scheduler.apply(plan, result)


def test_rows_are_reused(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(max_rows=2)
    for order in range(6):
        assert isinstance(stepper.submit(f"r{order}", _prompt(3), _sampling(2)), Admitted)
        stepper.run()
    assert {start.row for plan in stepper.plans for start in plan.starts} == {0}


# --- seeds ---------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "resolved"), [(0, 0), (7, 7), (None, 77)])
def test_zero_is_a_seed_and_none_draws_one(
    make_stepper: MakeStepper, seed: int | None, resolved: int
) -> None:
    stepper = make_stepper(entropy=2**64 + 77)
    stepper.submit("a", _prompt(3), _sampling(seed=seed))
    plan = stepper.step()
    assert plan is not None
    assert plan.starts[0].seed == resolved


# --- prefix cache --------------------------------------------------------------------


@DEPTHS
@pytest.mark.parametrize("num_tokens", [15, 16, 17, 32])
def test_a_prompt_that_is_wholly_cached_gives_the_same_ids(
    make_stepper: MakeStepper, depth: int, num_tokens: int
) -> None:
    """B59: again the same, a strict prefix, and prompt plus answer plus one."""
    stepper = make_stepper(depth=depth, block_tokens=16, chunk=16)
    prompt = _prompt(num_tokens)
    stepper.submit("first", prompt, _sampling(8))
    stepper.run()
    answer = tuple(stepper.outputs["first"])
    variants = {"again": prompt, "shorter": prompt[:-5], "longer": (*prompt, *answer, 3)}
    for name, variant in variants.items():
        stepper.submit(name, variant, _sampling(8))
        stepper.run()
        assert stepper.outputs[name] == generate_alone(variant, _sampling(8), 200, VOCAB)[0]
        gone = stepper.retired[name]
        assert gone.prompt_tokens == len(variant)
        assert gone.cached_tokens < len(variant)
    assert stepper.retired["again"].cached_tokens == (num_tokens - 1) // 16 * 16
    assert stepper.retired["longer"].cached_tokens == (num_tokens + 7) // 16 * 16


@DEPTHS
def test_a_burst_computes_its_shared_prefix_once(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(
        depth=depth, num_blocks=400, max_rows=16, block_tokens=4, chunk=32, quantum=8
    )
    shared = _prompt(80)
    for order in range(16):
        answer = stepper.submit(f"r{order}", (*shared, order, 9), _sampling(4))
        assert answer == Admitted(cached_tokens=0)
    stepper.run()
    assert stepper.engine.prefill_tokens == 80 + 16 * 2
    for order in range(16):
        alone, _ = generate_alone((*shared, order, 9), _sampling(4), 200, VOCAB)
        assert stepper.outputs[f"r{order}"] == alone
        assert stepper.retired[f"r{order}"].cached_tokens == (80 if order else 0)


@DEPTHS
def test_a_cancelled_leader_hands_its_prefix_on(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(depth=depth, chunk=8)
    shared = _prompt(40)
    for order in range(3):
        stepper.submit(f"r{order}", (*shared, order), _sampling(4))
    for _ in range(2):
        stepper.step()
    stepper.scheduler.cancel("r0")
    stepper.run()
    assert stepper.engine.prefill_tokens <= 40 + 3
    for order in (1, 2):
        alone, _ = generate_alone((*shared, order), _sampling(4), 200, VOCAB)
        assert stepper.outputs[f"r{order}"] == alone


def test_blocks_are_offered_once_they_are_computed_not_before(make_stepper: MakeStepper) -> None:
    scheduler, engine = (stepper := make_stepper(chunk=8)).scheduler, stepper.engine
    scheduler.submit("a", _prompt(30), _sampling())
    first, second = scheduler.plan(), scheduler.plan()
    assert first is not None
    assert second is not None
    assert scheduler.submit("b", _prompt(30), _sampling()) == Admitted(cached_tokens=0)
    scheduler.apply(first, engine.run(first))
    assert scheduler.submit("c", _prompt(30), _sampling()) == Admitted(cached_tokens=8)


# --- numbers -------------------------------------------------------------------------


def test_retired_carries_tokens_and_times_in_order(make_stepper: MakeStepper) -> None:
    stepper = make_stepper()
    stepper.submit("a", _prompt(6), _sampling(4))
    stepper.run()
    gone = stepper.retired["a"]
    assert (gone.prompt_tokens, gone.cached_tokens, gone.completion_tokens) == (6, 0, 4)
    times = [gone.admitted_ns, gone.first_token_ns, gone.last_token_ns, gone.retired_ns]
    assert times == sorted(set(times))
    assert times[0] > 0


def test_stats_count(make_stepper: MakeStepper) -> None:
    stepper = make_stepper()
    stepper.submit("a", _prompt(6), _sampling(4))
    assert stepper.scheduler.stats().running == 1
    stepper.run()
    stats = stepper.scheduler.stats()
    assert (stats.running, stats.preempted, stats.preemptions) == (0, 0, 0)
    assert (stats.steps, stats.prompt_tokens, stats.generated_tokens) == (4, 6, 4)
    assert stats.kv.query_tokens == 6
