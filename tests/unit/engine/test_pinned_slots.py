"""Small copies by kernels: in turns, and nothing is overwritten that somebody still wants."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch

from luce.engine import pinned_slots
from luce.engine.pinned_slots import PinnedSlots

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class HostSlot:
    """Of host memory; what is written arrives when it is waited for."""

    made: list[HostSlot]

    def __init__(self, device: torch.device) -> None:
        assert device == GPU
        self.numbers = np.zeros(64, dtype=np.int32)
        self.mapped = torch.from_numpy(self.numbers)
        self.finish: Callable[[], object] = tuple
        self.uses = self.waits = 0
        HostSlot.made.append(self)

    def begun(self) -> None:
        self.uses += 1

    def wait(self) -> None:
        self.waits += 1


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> PinnedSlots:
    HostSlot.made = []
    monkeypatch.setattr(pinned_slots, "_Slot", HostSlot)
    monkeypatch.setattr(pinned_slots, "_MOST", 64)
    monkeypatch.setattr(pinned_slots, "_SLOTS", 4)
    monkeypatch.setattr(PinnedSlots, "_try", lambda self, device: None)
    return PinnedSlots(GPU)


def test_numbers_go_through_the_slots_in_turns(slots: PinnedSlots) -> None:
    for turn in range(6):
        target = torch.zeros(2, 4, dtype=torch.int32)
        slots.send(np.arange(8, dtype=np.int32).reshape(2, 4) + turn, target)
        assert target.flatten().tolist() == list(range(turn, turn + 8))
    assert [slot.uses for slot in HostSlot.made] == [2, 2, 1, 1]
    # Of those used again, the first use had to be over.
    assert [slot.waits for slot in HostSlot.made] == [1, 1, 0, 0]


def test_what_was_not_read_in_time_is_kept(slots: PinnedSlots) -> None:
    read = slots.begin_read(torch.tensor([3, 1, 2], dtype=torch.int32))
    for _ in range(5):
        slots.begin_read(torch.tensor([9, 9, 9, 9], dtype=torch.int32))
    assert read() == read() == [3, 1, 2]


def test_what_no_slot_holds_is_copied(slots: PinnedSlots) -> None:
    target = torch.zeros(65, dtype=torch.int32)
    slots.send(np.arange(65, dtype=np.int32), target)
    assert slots.begin_read(target)() == list(range(65))
    assert slots.begin_read(torch.tensor([1, 2]))() == [1, 2]
    assert [slot.uses for slot in HostSlot.made] == [0] * 4


def test_a_device_that_cannot_has_usual_copies(
    slots: PinnedSlots, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: PinnedSlots, device: torch.device) -> None:
        raise RuntimeError("other numbers came back than were sent")

    monkeypatch.setattr(PinnedSlots, "_try", fail)
    with caplog.at_level(logging.WARNING):
        unable = PinnedSlots(GPU)
    assert "other numbers" in caplog.records[0].reason  # type: ignore[attr-defined]
    for each in (unable, PinnedSlots(CPU)):
        target = torch.zeros(3, dtype=torch.int32)
        each.send(np.arange(3, dtype=np.int32), target)
        assert each.begin_read(target)() == [0, 1, 2]
