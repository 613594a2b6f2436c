"""Sequences whose prompt is read instead of answered: steps, endings, what is kept of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luce.protocol.sampling import HiddenRead, SamplingParams
from luce.scheduler.outcome import Admitted, Busy
from luce.scheduler.plan import StepPlan, StepResult
from luce.testing.plan_engine import PlanEngine, generate_alone
from luce.testing.stepper import Stepper


def reading(*, keeps_prefix: bool = False) -> SamplingParams:
    return SamplingParams(max_tokens=1, hidden=HiddenRead((0,), keeps_prefix=keeps_prefix))


def prompt_of(length: int, first: int = 0) -> tuple[int, ...]:
    return tuple((first + index) % 50 for index in range(length))


GREEDY = SamplingParams(max_tokens=6, seed=1)


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request) -> int:
    return request.param


def test_a_prompt_is_read_in_chunks_and_ends(make_stepper, depth: int) -> None:
    stepper = make_stepper(chunk=8, depth=depth)
    prompt = prompt_of(21)
    assert stepper.submit("r", prompt, reading()) == Admitted(0)
    stepper.run()
    assert stepper.hidden["r"].last == bytes(prompt)
    assert (stepper.outputs["r"], stepper.endings["r"]) == ([], "stop")
    retired = stepper.retired["r"]
    assert (retired.finish, retired.completion_tokens, retired.prompt_tokens) == ("stop", 0, 21)
    assert [plan.num_tokens for plan in stepper.plans] == [8, 8, 5]
    assert not any(item.sample for plan in stepper.plans for item in plan.items)


def test_beside_generations_in_the_same_steps(make_stepper, depth: int) -> None:
    stepper = make_stepper(depth=depth)
    prompt = prompt_of(20)
    stepper.submit("text", prompt, GREEDY)
    stepper.submit("r", prompt, reading())
    stepper.submit("q", prompt_of(7, first=9), reading())
    stepper.run()
    assert stepper.hidden["r"].last == bytes(prompt)
    assert stepper.hidden["q"].last == bytes(prompt_of(7, first=9))
    assert stepper.outputs["text"] == generate_alone(prompt, GREEDY, 200, 50)[0]
    assert any(len(plan.items) > 1 for plan in stepper.plans)


def test_nothing_cached_is_used(make_stepper, depth: int) -> None:
    stepper = make_stepper(depth=depth)
    prompt = prompt_of(20)
    stepper.submit("text", prompt, GREEDY)
    stepper.run()
    computed = stepper.engine.prefill_tokens
    assert stepper.submit("r", prompt, reading()) == Admitted(0)
    stepper.run()
    assert stepper.engine.prefill_tokens == computed + 20


def test_nothing_is_kept_unless_asked(make_stepper, depth: int) -> None:
    stepper = make_stepper(depth=depth)
    prompt = prompt_of(21)
    stepper.submit("plain", prompt, reading())
    stepper.run()
    assert stepper.hidden["plain"].cached_tokens == 0
    assert stepper.scheduler.stats().kv.cached_blocks == 0
    stepper.submit("kept", prompt, reading(keeps_prefix=True))
    stepper.run()
    assert stepper.hidden["kept"].cached_tokens == 20
    assert stepper.submit("text", (*prompt, 1), GREEDY) == Admitted(20)
    stepper.run()


def test_what_is_cached_already_counts(make_stepper) -> None:
    stepper = make_stepper()
    stepper.submit("text", prompt_of(21), GREEDY)
    stepper.run()
    stepper.submit("kept", prompt_of(21), reading(keeps_prefix=True))
    stepper.run()
    assert stepper.hidden["kept"].cached_tokens == 20


def test_states_that_are_saved_count(make_stepper) -> None:
    stepper = make_stepper(num_checkpoints=4)
    prompt = prompt_of(100)
    stepper.submit("plain", prompt, reading())
    stepper.run()
    assert stepper.scheduler.stats().kv.used_checkpoints == 0
    stepper.submit("kept", prompt, reading(keeps_prefix=True))
    stepper.run()
    cached = stepper.hidden["kept"].cached_tokens
    assert 64 <= cached < 100
    assert stepper.submit("text", (*prompt, 1), GREEDY) == Admitted(cached)
    stepper.run()


def test_a_cancel_in_the_middle(make_stepper, depth: int) -> None:
    stepper = make_stepper(chunk=8, depth=depth)
    stepper.submit("r", prompt_of(40), reading(keeps_prefix=True))
    stepper.step()
    stepper.scheduler.cancel("r")
    stepper.run()
    assert stepper.hidden == {}
    assert stepper.retired["r"].finish == "cancelled"


def test_a_cancel_behind_the_last_chunk(make_stepper) -> None:
    stepper = make_stepper(depth=1)
    stepper.submit("r", prompt_of(8), reading())
    stepper.step()
    stepper.scheduler.cancel("r")
    stepper.run()
    assert (stepper.hidden, stepper.retired["r"].finish) == ({}, "cancelled")


def test_a_preempted_reading_begins_anew(make_stepper, depth: int) -> None:
    """The decoder needs the blocks that the reading holds."""
    stepper = make_stepper(num_blocks=10, block_tokens=4, chunk=4, depth=depth)
    long = replace(GREEDY, max_tokens=24)
    stepper.submit("text", prompt_of(4), long)
    stepper.submit("r", prompt_of(27, first=3), reading())
    stepper.run()
    assert stepper.hidden["r"].last == bytes(prompt_of(27, first=3))
    assert stepper.outputs["text"] == generate_alone(prompt_of(4), long, 36, 50)[0]
    assert stepper.scheduler.stats().preemptions > 0


def test_it_takes_a_row(make_stepper) -> None:
    stepper = make_stepper(max_rows=1)
    stepper.submit("r", prompt_of(8), reading())
    assert isinstance(stepper.submit("q", prompt_of(8), reading()), Busy)


def test_states_that_are_no_numbers_end_it_and_are_not_kept(make_stepper) -> None:
    class Broken(PlanEngine):
        def run(self, plan: StepPlan) -> StepResult:
            result = super().run(plan)
            return replace(result, hidden=tuple((row, None) for row, _ in result.hidden))

    stepper = make_stepper()
    broken = Stepper(stepper.scheduler, Broken(4))
    broken.submit("r", prompt_of(8), reading(keeps_prefix=True))
    broken.run()
    assert (broken.retired["r"].finish, broken.retired["r"].error) == ("error", "InternalError")
    assert broken.scheduler.stats().kv.cached_blocks == 0
