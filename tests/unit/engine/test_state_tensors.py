"""Recurrent states: which slot is whose, zeroing, saving, restoring."""

from __future__ import annotations

import pytest
import torch

from luce.engine.state_tensors import StateTensors
from luce.kv.spec import StateSpec
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence

SPEC = StateSpec(num_layers=3, conv_elements=6, recurrent_elements=10, conv_element_bytes=2)
ROWS, CHECKPOINTS = 2, 4


@pytest.fixture
def states() -> StateTensors:
    made = StateTensors(SPEC, ROWS, CHECKPOINTS, torch.bfloat16, torch.device("cpu"))
    for layer, each in enumerate(made.layers):
        assert not each.conv.any()
        assert not each.recurrent.any()
        for slot in range(ROWS + CHECKPOINTS + 1):
            each.conv[slot] = 10 * layer + slot + 1
            each.recurrent[slot] = 100 * layer + slot + 1
    return made


def start(row: int, checkpoint: int | None = None) -> RowStart:
    return RowStart(row, SamplingParams(max_tokens=1), 0, (0,), 1, checkpoint)


def item(row: int, checkpoint: int | None = None) -> ScheduledSequence:
    return ScheduledSequence(row, 0, (1,), (1,), sample=True, save_checkpoint=checkpoint)


def marks(states: StateTensors, layer: int) -> list[float]:
    """The one number each slot holds in a layer."""
    recurrent = states.layers[layer].recurrent
    assert bool((recurrent == recurrent[:, :1]).all())
    return [value - 100 * layer if value else 0 for value in recurrent[:, 0].tolist()]


def test_sizes(states: StateTensors) -> None:
    assert len(states.layers) == SPEC.num_layers
    assert states.layers[0].conv.shape == (7, 6)
    assert states.layers[0].recurrent.shape == (7, 10)
    assert states.layers[0].recurrent.dtype == torch.float32
    assert SPEC.bytes_per_slot == 3 * (6 * 2 + 10 * 4)
    assert states.nbytes == 7 * SPEC.bytes_per_slot


def test_a_new_row_begins_at_zero_in_every_layer(states: StateTensors) -> None:
    states.start([start(1)])
    for layer in range(SPEC.num_layers):
        assert marks(states, layer) == [1, 0, 3, 4, 5, 6, 7]
        assert not states.layers[layer].conv[1].any()


def test_a_restored_row_begins_where_the_checkpoint_was(states: StateTensors) -> None:
    states.start([start(0, checkpoint=3), start(1, checkpoint=0)])
    for layer in range(SPEC.num_layers):
        assert marks(states, layer) == [7, 4, 3, 4, 5, 6, 7]
        assert states.layers[layer].conv[0, 0].item() == 10 * layer + 7


def test_saving_copies(states: StateTensors) -> None:
    states.save([item(0), item(1, checkpoint=2)])
    states.start([start(1)])
    assert marks(states, 0) == [1, 0, 3, 4, 5, 2, 7]
    states.start([start(0, checkpoint=2)])
    assert marks(states, 2) == [2, 0, 3, 4, 5, 2, 7]
