"""Lanes of steps go in and tokens come out in turns, as the device counts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from luce.engine.step_ring import SLOTS, StepRing

CPU = torch.device("cpu")
PADDING = (7, 0, 0, 0)


class Ways:
    """Copies that are done when they are waited for."""

    def __init__(self, ring: StepRing) -> None:
        self._place = ring.place
        self.waits: list[int] = []

    def bring(self, at: int, lanes: npt.NDArray[np.int32]) -> None:
        self._place.lanes[at, : len(lanes)] = torch.from_numpy(lanes)

    def fetch(self, at: int, count: int) -> Callable[[], list[int]]:
        def wait() -> list[int]:
            self.waits.append(at)
            tokens: list[int] = self._place.tokens[at, :count].tolist()
            return tokens

        return wait

    def wait(self) -> None:
        self.waits.append(-1)


def ring_of(*, is_far: bool) -> StepRing:
    ring = StepRing(3, PADDING, CPU)
    if is_far:
        far: Any = Ways(ring)
        ring._ways = far
    ring.restart()
    return ring


def lanes_of(step: int, count: int) -> npt.NDArray[np.int32]:
    return np.arange(4 * count, dtype=np.int32).reshape(count, 4) + 100 * step


def work(ring: StepRing, count: int) -> torch.Tensor:
    """What a captured step does: finds lanes, leaves a token for each."""
    at = int(ring.place.state[0])
    found = ring.place.lanes[at, :count].clone()
    ring.place.tokens[at, :count] = found.sum(1)
    ring.place.state[0] = (at + 1) % SLOTS
    return found


@pytest.mark.parametrize("is_far", [True, False])
def test_steps_find_their_lanes_and_leave_their_tokens(is_far: bool) -> None:
    ring = ring_of(is_far=is_far)
    assert (ring.place.lanes == torch.tensor(PADDING)).all()
    for step in range(2 * SLOTS + 3):
        lanes = lanes_of(step, 1 + step % 3)
        ring.send(lanes)
        assert torch.equal(work(ring, len(lanes)), torch.from_numpy(lanes))
        assert ring.begin_read(len(lanes))() == lanes.sum(1).tolist()


@pytest.mark.parametrize("is_far", [True, False])
def test_tokens_that_were_not_read_in_time_are_kept(is_far: bool) -> None:
    ring = ring_of(is_far=is_far)
    reads = []
    for step in range(SLOTS + 2):
        ring.send(lanes_of(step, 1))
        work(ring, 1)
        reads.append(ring.begin_read(1))
    if is_far:
        # The first two slots were to be used again.
        ways: Any = ring._ways
        assert ways.waits == [-1, 0, 1]
    for _ in range(2):
        assert [read() for read in reads] == [[6 + 400 * step] for step in range(SLOTS + 2)]


@pytest.mark.parametrize("is_far", [True, False])
def test_a_restart_begins_with_the_first_slot(is_far: bool) -> None:
    ring = ring_of(is_far=is_far)
    ring.send(lanes_of(1, 2))
    work(ring, 2)
    read = ring.begin_read(2)
    ring.restart()
    assert ring.place.state.tolist() == [0, 0]
    assert (ring.place.lanes == torch.tensor(PADDING)).all()
    ring.send(lanes_of(2, 1))
    assert torch.equal(work(ring, 1), torch.from_numpy(lanes_of(2, 1)))
    assert ring.begin_read(1)() == [806]
    # What a step before it left is still known.
    assert read() == [406, 422]


@pytest.mark.parametrize("is_far", [True, False])
def test_a_step_that_was_not_launched_takes_no_turn(is_far: bool) -> None:
    """The next one's lanes replace its own."""
    ring = ring_of(is_far=is_far)
    ring.send(lanes_of(1, 3))
    for step in range(2, SLOTS + 4):
        ring.send(lanes_of(step, 2))
        assert torch.equal(work(ring, 2), torch.from_numpy(lanes_of(step, 2)))
        assert ring.begin_read(2)() == lanes_of(step, 2).sum(1).tolist()
