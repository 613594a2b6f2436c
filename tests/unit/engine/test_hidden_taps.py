"""What is taken of a step's residual stream, over chunks and rows."""

from __future__ import annotations

import numpy as np
import torch

from luce.engine.hidden_taps import HiddenTaps
from luce.protocol.sampling import HiddenRead, HiddenStates, SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence


def start(row: int, length: int, read: HiddenRead | None) -> RowStart:
    params = SamplingParams(max_tokens=1, hidden=read)
    return RowStart(row, params, 0, tuple(range(length)), length)


def chunk(row: int, first: int, count: int) -> ScheduledSequence:
    return ScheduledSequence(row, first, tuple(range(count)), (1,), sample=False)


def numbers(stored: bytes) -> list[float]:
    return np.frombuffer(stored, dtype="<f4").tolist()


def states(taps: HiddenTaps, items: list[ScheduledSequence], layers: list[torch.Tensor]):
    tap = taps.begin(items)
    assert tap is not None
    for index, hidden in enumerate(layers):
        tap.take(index, hidden)
        # Later blocks write over it.
        hidden.zero_()
    return dict(tap.finish()())


def test_steps_of_rows_that_read_nothing_have_no_tap() -> None:
    taps = HiddenTaps(2)
    taps.start([start(0, 3, None)])
    assert taps.begin([chunk(0, 0, 3)]) is None


def test_the_last_token_and_the_mean() -> None:
    taps = HiddenTaps(1)
    taps.start([start(0, 3, HiddenRead((1,), wants_mean=True))])
    hidden = torch.tensor([[1.0, 10.0], [2.0, 20.0], [6.0, 60.0]])
    found = states(taps, [chunk(0, 0, 3)], [hidden * 9, hidden])
    assert found[0] is not None
    assert (numbers(found[0].last), numbers(found[0].mean)) == ([6.0, 60.0], [3.0, 30.0])


def test_layers_come_in_the_order_asked_for_and_as_often() -> None:
    taps = HiddenTaps(1)
    taps.start([start(0, 1, HiddenRead((2, 0, 2)))])
    layers = [torch.full((1, 1), float(index)) for index in range(3)]
    found = states(taps, [chunk(0, 0, 1)], layers)[0]
    assert found == HiddenStates(np.array([2, 0, 2], dtype="<f4").tobytes())


def test_chunks_are_put_together() -> None:
    taps = HiddenTaps(1)
    taps.start([start(0, 5, HiddenRead((0,), wants_mean=True))])
    assert states(taps, [chunk(0, 0, 3)], [torch.tensor([[1.0], [2.0], [3.0]])]) == {}
    found = states(taps, [chunk(0, 3, 2)], [torch.tensor([[4.0], [10.0]])])[0]
    assert found is not None
    assert (numbers(found.last), numbers(found.mean)) == ([10.0], [4.0])


def test_sums_are_of_double_precision() -> None:
    """In float32 the ones would be lost beside 2**25."""
    taps = HiddenTaps(1)
    taps.start([start(0, 64, HiddenRead((0,), wants_mean=True))])
    values = [2.0**25] + [1.0] * 62 + [-(2.0**25)]
    for at in range(63):
        states(taps, [chunk(0, at, 1)], [torch.tensor([[values[at]]])])
    found = states(taps, [chunk(0, 63, 1)], [torch.tensor([[values[63]]])])[0]
    assert found is not None
    assert numbers(found.mean) == [62 / 64]


def test_rows_side_by_side() -> None:
    taps = HiddenTaps(3)
    taps.start([start(0, 2, HiddenRead((0,))), start(1, 3, None), start(2, 1, HiddenRead((0,)))])
    items = [chunk(0, 0, 2), chunk(1, 0, 3), chunk(2, 0, 1)]
    found = states(taps, items, [torch.arange(6.0).unsqueeze(1)])
    assert {row: numbers(each.last) for row, each in found.items() if each} == {0: [1.0], 2: [5.0]}


def test_a_new_occupant_knows_nothing_of_the_old() -> None:
    taps = HiddenTaps(1)
    read = HiddenRead((0,), wants_mean=True)
    taps.start([start(0, 3, read)])
    states(taps, [chunk(0, 0, 2)], [torch.full((2, 1), 100.0)])
    taps.start([start(0, 1, read)])
    found = states(taps, [chunk(0, 0, 1)], [torch.tensor([[5.0]])])[0]
    assert found is not None
    assert numbers(found.mean) == [5.0]
    taps.start([start(0, 1, None)])
    assert taps.begin([chunk(0, 0, 1)]) is None


def test_numbers_that_are_none() -> None:
    for value in (float("nan"), float("inf")):
        taps = HiddenTaps(1)
        taps.start([start(0, 2, HiddenRead((0,), wants_mean=True))])
        # Only the mean meets the first token's.
        assert states(taps, [chunk(0, 0, 2)], [torch.tensor([[value], [1.0]])]) == {0: None}


def test_narrow_types_are_read_as_float32() -> None:
    taps = HiddenTaps(1)
    taps.start([start(0, 1, HiddenRead((0,)))])
    found = states(taps, [chunk(0, 0, 1)], [torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)])
    assert found[0] is not None
    assert numbers(found[0].last) == [1.5, -2.0]
