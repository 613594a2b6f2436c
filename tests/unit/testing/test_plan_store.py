"""PlanStore: copies blocks and states of the double, and fails when it is full."""

from __future__ import annotations

import pytest

from luce.errors import PlacementError
from luce.testing.plan_engine import BadPlan, PlanEngine
from luce.testing.plan_store import PlanStore


def test_blocks_and_states_come_back() -> None:
    engine = PlanEngine(4, num_checkpoints=2)
    store = PlanStore(engine, num_blocks=3, num_states=1)
    engine.put_block(2, (1, 2, 3, 4))
    engine.checkpoints[1] = (1, 2, 3, 4)
    store.save_blocks([2], [0])
    store.save_state(1, 0)
    engine.put_block(2, (9, 9, 9, 9))
    engine.checkpoints.clear()
    store.load_blocks([0], [5])
    store.load_state(0, 0)
    assert engine.block(5) == (1, 2, 3, 4)
    assert engine.block(2) == (9, 9, 9, 9)
    assert engine.block(6) == (-1,) * 4
    assert engine.checkpoints == {0: (1, 2, 3, 4)}
    assert (store.num_blocks, store.num_states) == (3, 1)
    assert (store.num_loaded, store.num_loaded_states) == (1, 1)


def test_a_full_host_refuses() -> None:
    store = PlanStore(PlanEngine(4, num_checkpoints=1), num_blocks=1, num_states=1)
    store.is_full = True
    with pytest.raises(PlacementError):
        store.save_blocks([1], [0])
    with pytest.raises(PlacementError):
        store.save_state(0, 0)


def test_the_null_block_is_never_filled() -> None:
    store = PlanStore(PlanEngine(4), num_blocks=1, num_states=0)
    store.save_blocks([1], [0])
    with pytest.raises(BadPlan, match="null block"):
        store.load_blocks([0], [0])
