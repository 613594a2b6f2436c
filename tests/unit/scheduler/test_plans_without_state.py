"""Plans of models without recurrent layers, as they were before there were checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import StepPlan
from luce.testing.stepper import Stepper

MakeStepper = Callable[..., Stepper]

SHARED = tuple(range(100, 117))

# Row:first position+tokens@last block; "!" before rows that start.
EXPECTED = {
    0: """
        !0 0:0+8@2
        0:8+8@4
        !1!2 1:16+2@11 2:0+6@8
        1:18+1@11 0:16+2@5 2:6+6@13
        0:18+1@5 1:19+1@11 2:12+8@15
        !3 0:19+1@5 1:20+1@12 2:20+2@16 3:8+3@9
        0:20+1@6 1:21+1@12 2:22+1@16 3:11+1@9
    """,
    1: """
        !0 0:0+8@2
        0:8+8@4
        !2 0:16+2@5 2:0+6@14
        !1 0:18+1@5 1:16+2@11 2:6+6@15
        0:19+1@5 1:18+1@11 2:12+8@17
        !3 0:20+1@6 1:19+1@11 2:20+2@18 3:8+3@7
        0:21+1@6 1:20+1@12 2:22+1@18 3:11+1@7
    """,
}


def _line(plan: StepPlan) -> str:
    starts = "".join(f"!{start.row}" for start in plan.starts)
    items = [
        f"{each.row}:{each.start}+{each.num_tokens}@{each.block_table[-1]}" for each in plan.items
    ]
    return " ".join([starts, *items]).strip()


@pytest.mark.parametrize("depth", [0, 1])
def test_chunks_waiting_and_taking_over_are_the_same(make_stepper: MakeStepper, depth: int) -> None:
    stepper = make_stepper(num_blocks=24, max_ctx=60, chunk=8, max_prefill_sequences=2, depth=depth)
    stepper.submit("a", (*SHARED, 1), SamplingParams(max_tokens=6, seed=0))
    stepper.submit("b", (*SHARED, 2), SamplingParams(max_tokens=20, seed=1))
    for _ in range(2):
        stepper.step()
    stepper.submit("c", tuple(range(200, 222)), SamplingParams(max_tokens=30, seed=2))
    for _ in range(3):
        stepper.step()
    stepper.submit("d", (*SHARED[:9], 3, 4), SamplingParams(max_tokens=9, seed=3))
    for _ in range(2):
        stepper.step()
    assert [_line(plan) for plan in stepper.plans] == [
        line.strip() for line in EXPECTED[depth].strip().splitlines()
    ]
    assert {start.restore_checkpoint for plan in stepper.plans for start in plan.starts} == {None}
    assert {item.save_checkpoint for plan in stepper.plans for item in plan.items} == {None}
