"""PlanEngine: the double notices what a real engine would compute wrongly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.testing.plan_engine import BadPlan, PlanEngine

P = 4
PROMPT = tuple(range(10, 22))
SAMPLING = SamplingParams(max_tokens=5)


def _start(row: int, restore: int | None = None) -> RowStart:
    return RowStart(row, SAMPLING, 0, PROMPT, len(PROMPT), restore)


def _chunk(row: int, start: int, end: int, blocks: tuple[int, ...]) -> ScheduledSequence:
    return ScheduledSequence(row, start, PROMPT[start:end], blocks, sample=end == len(PROMPT))


def _saved_at_eight(engine: PlanEngine) -> None:
    """Row 0 has computed eight tokens in blocks 1 and 2; checkpoint 1 holds its state."""
    chunk = replace(_chunk(0, 0, 8, (1, 2)), save_checkpoint=1)
    engine.run(StepPlan(1, (_start(0),), (chunk,)))


def test_a_row_goes_on_from_a_checkpoint() -> None:
    engine = PlanEngine(P, num_checkpoints=2)
    _saved_at_eight(engine)
    assert engine.checkpoints == {1: PROMPT[:8]}
    follower = _chunk(1, 8, 12, (1, 2, 4))
    result = engine.run(StepPlan(2, (_start(1, 1),), (follower,)))
    alone = PlanEngine(P, num_checkpoints=2)
    whole = _chunk(0, 0, 12, (1, 2, 3))
    assert result.token_ids == alone.run(StepPlan(1, (_start(0),), (whole,))).token_ids


def test_a_checkpoint_is_read_before_it_is_written() -> None:
    engine = PlanEngine(P, num_checkpoints=2)
    _saved_at_eight(engine)
    leader = replace(_chunk(0, 8, 11, (1, 2, 3)), save_checkpoint=1)
    follower = _chunk(1, 8, 11, (1, 2, 4))
    engine.run(StepPlan(2, (_start(1, 1),), (leader, follower)))
    assert engine.checkpoints == {1: PROMPT[:11]}


@pytest.mark.parametrize("restore", [None, 0])
def test_a_state_of_another_position_is_noticed(restore: int | None) -> None:
    engine = PlanEngine(P, num_checkpoints=2)
    _saved_at_eight(engine)
    engine.checkpoints[0] = PROMPT[:4]
    plan = StepPlan(2, (_start(1, restore),), (_chunk(1, 8, 12, (1, 2, 4)),))
    with pytest.raises(BadPlan, match="another position"):
        engine.run(plan)


def test_a_state_of_other_tokens_is_noticed() -> None:
    engine = PlanEngine(P, num_checkpoints=2)
    _saved_at_eight(engine)
    engine.checkpoints[0] = (0, *PROMPT[1:8])
    plan = StepPlan(2, (_start(1, 0),), (_chunk(1, 8, 12, (1, 2, 4)),))
    with pytest.raises(BadPlan, match="other tokens"):
        engine.run(plan)


def test_checkpoints_that_are_not_there_are_noticed() -> None:
    engine = PlanEngine(P, num_checkpoints=2)
    with pytest.raises(BadPlan, match="nothing was saved"):
        engine.run(StepPlan(1, (_start(0, 0),), (_chunk(0, 0, 8, (1, 2)),)))
    engine = PlanEngine(P, num_checkpoints=1)
    with pytest.raises(BadPlan, match="no such checkpoint"):
        _saved_at_eight(engine)
    with pytest.raises(BadPlan, match="no such checkpoint"):
        _saved_at_eight(PlanEngine(P))


def test_two_saves_to_one_checkpoint_are_noticed() -> None:
    engine = PlanEngine(P, num_checkpoints=2)
    chunks = [
        replace(_chunk(row, 0, 8, blocks), save_checkpoint=0)
        for row, blocks in enumerate([(1, 2), (3, 4)])
    ]
    with pytest.raises(BadPlan, match="two states"):
        engine.run(StepPlan(1, (_start(0), _start(1)), tuple(chunks)))


def test_without_states_positions_may_be_skipped() -> None:
    engine = PlanEngine(P)
    engine.run(StepPlan(1, (_start(0),), (_chunk(0, 0, 8, (1, 2)),)))
    result = engine.run(StepPlan(2, (_start(1),), (_chunk(1, 8, 12, (1, 2, 4)),)))
    assert len(result.token_ids) == 1
