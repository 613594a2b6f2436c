"""Plans that make no sense are refused, and leave no trace."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from luce.engine.options import EngineInfo
from luce.engine.plan_check import PlanCheck
from luce.errors import InternalError, InvalidRequest
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan

INFO = EngineInfo(
    architecture="llama",
    device="cpu",
    dtype="float32",
    max_ctx=40,
    kv_pool_tokens=160,
    num_blocks=11,
    block_tokens=16,
    max_rows=3,
    weights_bytes=1,
    kv_bytes=1,
    vocab_size=50,
)
START = RowStart(1, SamplingParams(max_tokens=5), 0, (3, 4), 2)
ITEM = ScheduledSequence(1, 0, (3, 4), (7,), sample=True)


def plan(item: ScheduledSequence = ITEM, start: RowStart | None = START) -> StepPlan:
    return StepPlan(1, (start,) if start else (), (item,))


def test_a_sound_plan() -> None:
    check = PlanCheck(INFO)
    check.check(plan())
    check.check(plan(replace(ITEM, start=2, token_ids=()), None))
    check.check(plan(replace(ITEM, start=39, token_ids=(), block_table=(1, 10, 5)), None))


def test_a_decoding_rows_table_is_checked_as_it_grows() -> None:
    check = PlanCheck(INFO)
    check.check(plan())
    check.check(plan(replace(ITEM, start=2, token_ids=()), None))
    grown = replace(ITEM, start=16, token_ids=(), block_table=(7, 11))
    with pytest.raises(InternalError, match="outside 1 to 10"):
        check.check(plan(grown, None))
    with pytest.raises(InternalError, match="outside 1 to 10"):
        check.check(plan(grown, None))
    with pytest.raises(InternalError, match="outside 1 to 10"):
        check.check(plan(replace(ITEM, block_table=(11,))))


def test_a_new_occupants_table_is_looked_at_though_it_is_as_long_as_the_last_ones() -> None:
    check = PlanCheck(INFO)
    check.check(plan())
    with pytest.raises(InternalError, match="outside 1 to 10"):
        check.check(plan(replace(ITEM, start=2, token_ids=(), block_table=(11,))))


def test_decode_rows_come_first() -> None:
    decode = replace(ITEM, row=2, start=2, token_ids=())
    starts = (START, replace(START, row=2))
    PlanCheck(INFO).check(StepPlan(1, starts, (decode, ITEM)))
    with pytest.raises(InternalError, match="a decode row behind a prompt"):
        PlanCheck(INFO).check(StepPlan(1, starts, (ITEM, decode)))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (replace(ITEM, row=2), "row 2, which was not started"),
        (replace(ITEM, start=-1), "positions -1 to 1"),
        (replace(ITEM, start=39, block_table=(1, 2, 3)), "positions 39 to 41 exceed"),
        (replace(ITEM, start=15), "1 blocks do not hold 17"),
        (replace(ITEM, block_table=()), "0 blocks do not hold 2"),
        (replace(ITEM, block_table=(0,)), "block id is outside 1 to 10"),
        (replace(ITEM, block_table=(11,)), "block id is outside 1 to 10"),
        (replace(ITEM, token_ids=(3, 50)), "token ids must be in 0 to 49"),
        (replace(ITEM, token_ids=(-1,)), "token ids must be in 0 to 49"),
    ],
)
def test_bad_items(item: ScheduledSequence, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        PlanCheck(INFO).check(plan(item))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (replace(START, row=3), "starts row 3 of 3"),
        (replace(START, row=-1), "starts row -1"),
        (replace(START, history=()), "there must be some"),
        (replace(START, history=(3, 50)), "token ids must be in"),
        (replace(START, history=(3,) * 300 + (50,)), "token ids must be in"),
        (replace(START, history=(-1,) + (3,) * 300), "token ids must be in"),
        (replace(START, history=(3,) * 300 + (1 << 40,)), "token ids must be in"),
        (replace(START, seed=1 << 64), "not below"),
        (replace(START, seed=-1), "not below"),
    ],
)
def test_bad_starts(start: RowStart, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        PlanCheck(INFO).check(plan(start=start))


@pytest.mark.parametrize("bias", [{50: 1.0}, {-1: 1.0}, {3: math.nan}, {3: math.inf}])
def test_bias_for_what_is_not_there(bias: dict[int, float]) -> None:
    start = replace(START, sampling=SamplingParams(max_tokens=5, logit_bias=bias))
    with pytest.raises(InvalidRequest, match="logit_bias") as caught:
        PlanCheck(INFO).check(plan(start=start))
    assert caught.value.param == "logit_bias"


def test_a_row_twice() -> None:
    with pytest.raises(InternalError, match="a row twice"):
        PlanCheck(INFO).check(StepPlan(1, (START,), (ITEM, ITEM)))


def test_nothing_to_do() -> None:
    with pytest.raises(InternalError, match="nothing to compute"):
        PlanCheck(INFO).check(StepPlan(1, (START,), ()))


def test_a_refused_plan_starts_no_row() -> None:
    check = PlanCheck(INFO)
    with pytest.raises(InternalError):
        check.check(plan(replace(ITEM, block_table=(0,))))
    with pytest.raises(InternalError, match="not started"):
        check.check(plan(ITEM, None))
