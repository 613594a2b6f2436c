"""Scheduler: grammars, reasoning budgets and log probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from luce.protocol.sampling import GrammarSpec, ReasoningBudget, SamplingParams, TokenLogprobs
from luce.scheduler.outcome import Admitted, SequenceDelta
from luce.scheduler.plan import (
    GRAMMAR_ENDED_TOKEN,
    GRAMMAR_FAILED_TOKEN,
    StepPlan,
    StepResult,
)
from luce.testing.plan_engine import PlanEngine, generate_alone
from luce.testing.stepper import Stepper

MakeStepper = Callable[..., Stepper]

VOCAB = 50
GRAMMAR = GrammarSpec("start: /a*/")
BUDGET = ReasoningBudget(
    max_tokens=3, starts_open=True, open_ids=(), close_ids=(48, 49), forced_ids=(47, 48, 49)
)
PROMPT = (1, 2, 3, 4, 5)
DEPTHS = pytest.mark.parametrize("depth", [0, 1])


def sampling(max_tokens: int = 12, **rest: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=0, **rest)  # type: ignore[arg-type]


def instead(stepper: Stepper, output_index: int, token_id: int) -> None:
    """Have the engine say `token_id` for every row's token of this index."""
    run: Callable[[StepPlan], StepResult] = stepper.engine.run

    def changed(plan: StepPlan) -> StepResult:
        result = run(plan)
        items = [item for item in plan.items if item.sample]
        pairs = zip(items, result.token_ids, strict=True)
        ids = tuple(token_id if item.output_index == output_index else id_ for item, id_ in pairs)
        return replace(result, token_ids=ids)

    stepper.engine.run = changed  # type: ignore[method-assign]


def planned_ahead(stepper: Stepper) -> int:
    """How many steps of a fresh stepper's run were planned over one under way."""
    count = 0
    while stepper.scheduler.has_work:
        before = len(stepper._under_way)
        count += stepper.step() is not None and before == 1
    return count


# --- depth -----------------------------------------------------------------------------


def test_a_grammar_costs_no_depth(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(depth=1)
    stepper.submit("a", PROMPT, sampling(20, grammar=GRAMMAR))
    assert planned_ahead(stepper) == 19
    assert len(stepper.outputs["a"]) == 20


def test_a_neighbour_of_a_grammar_has_the_text_it_has_alone(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(depth=1)
    stepper.submit("free", PROMPT, sampling(30))
    stepper.submit("bound", PROMPT[::-1], sampling(7, grammar=GRAMMAR))
    stepper.run()
    assert stepper.outputs["free"] == generate_alone(PROMPT, sampling(30), 200, VOCAB)[0]
    assert stepper.outputs["bound"] == generate_alone(PROMPT[::-1], sampling(7), 200, VOCAB)[0]


def test_without_constraints_every_step_is_planned_ahead(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(depth=1)
    stepper.submit("a", PROMPT, sampling(20, min_tokens=5, logprobs=3, stop_token_ids=(99,)))
    assert planned_ahead(stepper) == 19


def test_a_budget_costs_depth_only_where_it_decides(make_stepper: MakeStepper) -> None:
    def ahead(max_tokens: int) -> int:
        stepper = make_stepper(depth=1)
        budget = replace(BUDGET, max_tokens=max_tokens)
        stepper.submit("a", PROMPT, sampling(20, reasoning=budget))
        return planned_ahead(stepper)

    assert ahead(1000) == 19
    # The forced tokens wait, each for the one before it, and so does the one behind them.
    assert 19 - ahead(10) == len(BUDGET.forced_ids) + 1


# --- reasoning -------------------------------------------------------------------------


@DEPTHS
def test_reasoning_is_closed_by_force(make_stepper: MakeStepper, depth: int) -> None:
    params = sampling(reasoning=BUDGET)
    stepper = make_stepper(depth=depth)
    stepper.submit("a", PROMPT, params)
    stepper.run()
    output = stepper.outputs["a"]
    assert output[3:6] == [47, 48, 49]
    assert output == generate_alone(PROMPT, params, 200, VOCAB)[0]
    assert stepper.endings["a"] == "length"


@DEPTHS
def test_a_budget_of_nothing_forces_the_first_token(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(depth=depth, chunk=4)
    stepper.submit("a", PROMPT, sampling(reasoning=replace(BUDGET, max_tokens=0)))
    stepper.run()
    assert stepper.outputs["a"][:3] == [47, 48, 49]
    forced = [item.forced_token for plan in stepper.plans for item in plan.items]
    # The chunk that samples nothing forces nothing either.
    assert forced[:5] == [None, 47, 48, 49, None]


@DEPTHS
def test_a_forced_close_goes_on_after_a_preemption(make_stepper: MakeStepper, depth: int) -> None:
    params = sampling(
        24, reasoning=replace(BUDGET, max_tokens=2, forced_ids=(*range(20, 34), 48, 49))
    )
    stepper = make_stepper(depth=depth, num_blocks=13, max_ctx=48, prefix_cache=False)
    prompts = {"old": tuple(range(1, 17)), "young": tuple(range(3, 11))}
    for name, prompt in prompts.items():
        assert isinstance(stepper.submit(name, prompt, params), Admitted)
    stepper.run()
    assert stepper.scheduler.stats().preemptions
    for name, prompt in prompts.items():
        expected = generate_alone(prompt, params, 48, VOCAB)[0]
        assert stepper.outputs[name] == expected
        assert expected[2:18] == [*range(20, 34), 48, 49]


@DEPTHS
def test_a_stuck_answer_ends_with_length(make_stepper: MakeStepper, depth: int) -> None:
    class Stuck(PlanEngine):
        def run(self, plan: StepPlan) -> StepResult:
            ids = tuple(
                item.output_index % 12 if item.forced_token is None else item.forced_token
                for item in plan.items
                if item.sample
            )
            return StepResult(plan.step, ids)

    stepper = make_stepper(depth=depth)
    stepper.engine = Stuck(4)
    stepper.submit("a", PROMPT, sampling(90, reasoning=replace(BUDGET, max_tokens=1)))
    stepper.submit("b", PROMPT, sampling(90))
    stepper.run()
    assert (stepper.endings["a"], len(stepper.outputs["a"])) == ("length", 1 + 3 + 24)
    assert (stepper.endings["b"], len(stepper.outputs["b"])) == ("length", 90)


# --- what comes in place of a token ----------------------------------------------------


@DEPTHS
def test_a_complete_grammar_ends_with_stop(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(depth=depth)
    instead(stepper, 4, GRAMMAR_ENDED_TOKEN)
    stepper.submit("a", PROMPT, sampling(grammar=GRAMMAR, logprobs=0))
    stepper.run()
    assert stepper.endings["a"] == "stop"
    assert stepper.outputs["a"] == generate_alone(PROMPT, sampling(4), 200, VOCAB)[0]
    assert stepper.retired["a"].completion_tokens == 4


@DEPTHS
def test_a_broken_grammar_ends_its_own_request_alone(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(depth=depth)
    instead(stepper, 4, GRAMMAR_FAILED_TOKEN)
    stepper.submit("a", PROMPT, sampling(grammar=GRAMMAR))
    stepper.submit("b", PROMPT[1:], sampling(4))
    stepper.run()
    gone = stepper.retired["a"]
    assert (gone.finish, gone.error) == ("error", "InvalidGrammar")
    assert "grammar" in gone.detail
    assert gone.completion_tokens == 4
    assert stepper.retired["b"].finish == "length"


def test_what_a_broken_grammar_computed_may_be_shared(make_stepper: MakeStepper) -> None:
    stepper = make_stepper()
    instead(stepper, 4, GRAMMAR_FAILED_TOKEN)
    stepper.submit("a", tuple(range(12)), sampling(grammar=GRAMMAR))
    stepper.run()
    assert stepper.submit("b", tuple(range(12)), sampling(2)) == Admitted(8)


# --- log probabilities -----------------------------------------------------------------


def test_deltas_carry_one_report_for_each_token(make_stepper: MakeStepper) -> None:
    stepper = make_stepper()
    deltas: list[SequenceDelta] = []
    gain = stepper._gain
    stepper._gain = lambda delta: (deltas.append(delta), gain(delta))[1]  # type: ignore[method-assign]
    ids = generate_alone(PROMPT, sampling(), 200, VOCAB)[0]
    stop_at = next(
        index for index, token_id in enumerate(ids) if token_id not in ids[:index] and index
    )
    stepper.submit("a", PROMPT, sampling(stop_token_ids=(ids[stop_at],), logprobs=1))
    stepper.submit("b", PROMPT, sampling(2))
    stepper.run()
    mine = [delta for delta in deltas if delta.request_id == "a"]
    assert [delta.logprobs for delta in mine] == [
        *((TokenLogprobs(-float(token_id)),) for token_id in ids[:stop_at]),
        (),
    ]
    assert {delta.logprobs for delta in deltas if delta.request_id == "b"} == {None}
