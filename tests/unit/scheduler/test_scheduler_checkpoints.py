"""The scheduler on an engine with recurrent states: chunks end at marks, rows start from
checkpoints, and nothing of it changes an output."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from luce.protocol.sampling import SamplingParams
from luce.scheduler.limits import CheckpointPolicy
from luce.scheduler.outcome import Admitted
from luce.scheduler.plan import RowStart, StepPlan
from luce.testing.plan_engine import generate_alone
from luce.testing.stepper import Stepper

MakeStepper = Callable[..., Stepper]

CLOSE = CheckpointPolicy(interval_tokens=16, min_gain_tokens=4, opening_tokens=1)
ENDS = CheckpointPolicy(interval_tokens=1000, min_gain_tokens=4, opening_tokens=1)
SHARED = tuple(range(100, 133))
FEW = SamplingParams(max_tokens=3, seed=0)


def _chunks(plans: list[StepPlan]) -> list[list[tuple[int, int, int | None]]]:
    """(row, end, slot) of the prefill chunks of each plan that has some."""
    chunks = [
        [
            (item.row, item.start + item.num_tokens, item.save_checkpoint)
            for item in plan.items
            if item.token_ids
        ]
        for plan in plans
    ]
    return [each for each in chunks if each]


def _starts(plans: list[StepPlan]) -> list[RowStart]:
    return [start for plan in plans for start in plan.starts]


def _is_right(stepper: Stepper, name: str, prompt: tuple[int, ...], params: SamplingParams) -> bool:
    return stepper.outputs[name] == generate_alone(prompt, params, 200, 50)[0]


@pytest.mark.parametrize("depth", [0, 1])
def test_chunks_end_at_marks_and_are_saved_there(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(chunk=12, depth=depth, num_checkpoints=16, checkpoints=CLOSE)
    prompt = tuple(range(42))
    stepper.submit("a", prompt, FEW)
    stepper.run()
    assert _chunks(stepper.plans) == [
        [(0, 12, None)],
        [(0, 16, 0)],
        [(0, 28, None)],
        [(0, 32, 1)],
        [(0, 40, 2)],
        [(0, 42, None)],
    ]
    written = (*prompt, *stepper.outputs["a"])
    saved = {0: prompt[:16], 1: prompt[:32], 2: prompt[:40], 3: written[:44]}
    assert stepper.engine.checkpoints == saved
    assert _is_right(stepper, "a", prompt, FEW)


def test_the_same_prompt_again_starts_from_its_last_checkpoint(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(num_checkpoints=4, checkpoints=ENDS)
    for name in "ab":
        answer = stepper.submit(name, SHARED, FEW)
        stepper.run()
        assert _is_right(stepper, name, SHARED, FEW)
    assert answer == Admitted(32)
    assert [start.restore_checkpoint for start in _starts(stepper.plans)] == [None, 0]
    assert stepper.retired["b"].cached_tokens == 32
    stats = stepper.scheduler.stats().kv
    assert (stats.used_checkpoints, stats.restored_checkpoints) == (1, 1)


def test_a_prefix_that_parted_before_is_saved_for_the_third(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(num_checkpoints=8, checkpoints=ENDS)
    found = []
    for tail in range(3):
        prompt = (*SHARED, *range(tail * 10, tail * 10 + 10))
        answer = stepper.submit(f"r{tail}", prompt, FEW)
        assert isinstance(answer, Admitted)
        found.append(answer.cached_tokens)
        stepper.run()
        assert _is_right(stepper, f"r{tail}", prompt, FEW)
    assert found == [0, 0, 32]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_burst_computes_the_shared_prefix_once(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(chunk=64, depth=depth, num_checkpoints=4, checkpoints=ENDS)
    for tail in range(4):
        stepper.submit(f"r{tail}", (*SHARED, tail), FEW)
    stepper.run()
    assert stepper.engine.prefill_tokens == 32 + 4 * 2
    assert _chunks(stepper.plans)[0] == [(0, 32, 0)]
    restored = [start.restore_checkpoint for start in _starts(stepper.plans)]
    assert restored == [None, 0, 0, 0]
    for tail in range(4):
        assert _is_right(stepper, f"r{tail}", (*SHARED, tail), FEW)


def test_one_that_comes_late_computes_what_was_not_saved(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(chunk=64, num_checkpoints=4, checkpoints=ENDS)
    stepper.submit("a", (*SHARED, *range(30)), FEW)
    assert _chunks([plan for _ in range(1) if (plan := stepper.step())]) == [[(0, 60, 0)]]
    stepper.submit("b", (*SHARED, *range(40, 70)), FEW)
    stepper.run()
    assert _is_right(stepper, "b", (*SHARED, *range(40, 70)), FEW)
    assert stepper.retired["b"].cached_tokens == 0
    answer = stepper.submit("c", (*SHARED, 1, 2, 3, 4, 5), FEW)
    assert answer == Admitted(32)


def test_the_next_takes_over_when_the_leader_is_cancelled(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(chunk=8, depth=1, num_checkpoints=16, checkpoints=CLOSE)
    for tail in range(3):
        stepper.submit(f"r{tail}", (*SHARED, tail), FEW)
    stepper.step()
    stepper.step()
    stepper.step()
    stepper.scheduler.cancel("r0")
    stepper.run()
    assert stepper.endings == {"r1": "length", "r2": "length"}
    assert stepper.retired["r1"].cached_tokens == 16, "what the leader had saved"
    assert stepper.retired["r2"].cached_tokens == 32
    for tail in (1, 2):
        assert _is_right(stepper, f"r{tail}", (*SHARED, tail), FEW)


def test_cancelled_before_its_start_it_pins_nothing(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(num_checkpoints=1, checkpoints=ENDS)
    stepper.submit("a", SHARED, FEW)
    stepper.run()
    stepper.submit("b", SHARED, FEW)
    stepper.scheduler.cancel("b")
    stepper.scheduler.check_integrity()
    other = tuple(range(40))
    stepper.submit("c", other, FEW)
    stepper.run()
    assert stepper.engine.checkpoints == {0: other[:36]}


def test_the_only_slot_is_saved_over_behind_the_start_that_reads_it(
    make_stepper: MakeStepper,
) -> None:
    stepper = make_stepper(chunk=64, depth=1, num_checkpoints=1, checkpoints=ENDS)
    stepper.submit("a", SHARED, FEW)
    stepper.run()
    other = tuple(range(21))
    longer = (*SHARED, *range(8))
    stepper.submit("other", other, FEW)
    stepper.submit("again", longer, FEW)
    plan = stepper.step()
    assert plan is not None
    assert [start.restore_checkpoint for start in plan.starts] == [None, 0]
    assert [item.save_checkpoint for item in plan.items] == [0, None]
    stepper.run()
    assert _is_right(stepper, "other", other, FEW)
    assert _is_right(stepper, "again", longer, FEW)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_preempted_sequence_goes_on_from_its_checkpoints(
    make_stepper: MakeStepper, depth: int
) -> None:
    stepper = make_stepper(
        num_blocks=18, max_rows=2, chunk=16, depth=depth, num_checkpoints=8, checkpoints=CLOSE
    )
    params = SamplingParams(max_tokens=30, seed=1)
    first, second = tuple(range(20)), tuple(range(200, 220))
    stepper.submit("a", first, params)
    stepper.submit("b", second, params)
    stepper.run()
    assert stepper.scheduler.stats().preemptions >= 1
    restored = [start.restore_checkpoint for start in _starts(stepper.plans)]
    assert len(restored) >= 3
    assert restored[2] is not None
    assert stepper.retired["b"].cached_tokens == 0, "its own work, which nobody saved it"
    assert _is_right(stepper, "a", first, params)
    assert _is_right(stepper, "b", second, params)


def _kept(stepper: Stepper) -> set[tuple[int, ...]]:
    """What the states that can be gone on from are of."""
    kept = stepper.scheduler._kv._checkpoints._kept.values()
    return {stepper.engine.checkpoints[slot] for slot in kept}


def test_output_is_saved_at_regular_distances_and_at_its_end(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(depth=1, num_checkpoints=16, checkpoints=CLOSE)
    params = SamplingParams(max_tokens=38, seed=1)
    stepper.submit("a", tuple(range(6)), params)
    stepper.run()
    written = (*range(6), *stepper.outputs["a"])
    assert len(written) == 44
    # The last token is sampled and not computed, so 40 is the last border behind it.
    assert _kept(stepper) == {written[:4], written[:16], written[:32], written[:40]}
    answer = stepper.submit("b", (*written[:39], 1, 2, 3), FEW)
    assert answer == Admitted(32)
    stepper.run()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("num_answer", [9, 30, 61])
def test_the_next_turn_of_a_chat_computes_its_own_tokens_only(
    make_stepper: MakeStepper, depth: int, num_answer: int
) -> None:
    stepper = make_stepper(depth=depth, num_blocks=400, max_ctx=500, num_checkpoints=9)
    history: tuple[int, ...] = tuple(range(200, 241))
    num_known = 0
    for turn in range(4):
        answer = stepper.submit(
            f"t{turn}", history, SamplingParams(max_tokens=num_answer, seed=turn)
        )
        assert isinstance(answer, Admitted)
        # Only what the last answer left in an unfinished block is computed twice.
        assert 0 <= num_known - answer.cached_tokens < 4
        stepper.run()
        history += tuple(stepper.outputs[f"t{turn}"])
        num_known = len(history) - 1
        history += tuple(range(turn, turn + 11))
    assert stepper.scheduler.stats().kv.used_checkpoints <= 9


def test_many_answers_leave_half_of_the_slots_to_prompts(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(max_rows=8, num_blocks=200, num_checkpoints=6, checkpoints=ENDS)
    prompts = [tuple(range(100 * name, 100 * name + 18)) for name in range(3)]
    for name, prompt in enumerate(prompts):
        stepper.submit(f"r{name}", prompt, SamplingParams(max_tokens=1, seed=1))
    stepper.run()
    for name in range(3, 9):
        stepper.submit(f"r{name}", (name, name), SamplingParams(max_tokens=20, seed=1))
    stepper.run()
    kept = _kept(stepper)
    assert {prompt[:16] for prompt in prompts} <= kept
    assert len(kept) == 6


def test_an_engine_fault_gives_all_slots_back(make_stepper: MakeStepper) -> None:
    stepper = make_stepper(chunk=64, depth=1, num_checkpoints=2, checkpoints=ENDS)
    stepper.submit("a", SHARED, FEW)
    stepper.step()
    stepper.forget_results()
    stepper.scheduler.fail_all("InternalError", "")
    stepper.scheduler.check_integrity()
    assert stepper.scheduler.stats().kv.used_checkpoints == 0
    assert stepper.submit("b", SHARED, FEW) == Admitted(0)
    stepper.run()
    assert _is_right(stepper, "b", SHARED, FEW)


@pytest.mark.parametrize("options", [{"num_checkpoints": 0}, {"prefix_cache": False}])
def test_without_checkpoints_every_row_starts_from_nothing(
    make_stepper: MakeStepper, options: dict[str, int]
) -> None:
    stepper = make_stepper(**{"num_checkpoints": 3, "checkpoints": CLOSE, **options})
    for name in "ab":
        stepper.submit(name, SHARED, FEW)
    stepper.run()
    assert stepper.submit("c", SHARED, FEW) == Admitted(0)
    stepper.run()
    assert {start.restore_checkpoint for start in _starts(stepper.plans)} == {None}
    assert {item.save_checkpoint for plan in stepper.plans for item in plan.items} == {None}
    assert stepper.engine.prefill_tokens == 3 * len(SHARED)
