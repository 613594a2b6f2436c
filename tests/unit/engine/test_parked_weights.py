"""Memory that leaves its device and comes back, on a CPU that stands for a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from luce.engine import parked_weights
from luce.engine.device import Device
from luce.engine.parked_weights import ParkedWeights

CPU = Device("cpu", torch.device("cpu"))


@dataclass(frozen=True, slots=True)
class Slotted:
    weight: torch.Tensor
    parts: tuple[object, ...] = ()


class Plain:
    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        self._again = self

    def method(self) -> torch.Tensor:
        return self._weight


# Only objects of our package are looked into.
Slotted.__module__ = Plain.__module__ = "luce.tests"


def filled(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def test_everything_that_is_reached_leaves_and_comes_back() -> None:
    tensors = [filled(3, 5), filled(7), filled(64, 64), filled(2), filled(9), filled(4)]
    before = [tensor.clone() for tensor in tensors]
    hidden = tensors[5]
    root = Slotted(
        tensors[0],
        (
            Plain(tensors[1]),
            {"a": [tensors[2]]},
            partial(print, tensors[3]),
            Plain(tensors[4]).method,
            lambda: hidden,
        ),
    )
    parked = ParkedWeights([root], CPU)
    assert parked.nbytes == parked.device_bytes == sum(each.nbytes for each in tensors)
    parked.leave_device()
    assert parked.device_bytes == 0
    assert all(each.untyped_storage().nbytes() == 0 for each in tensors)
    parked.return_()
    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))


def test_views_and_shared_tensors_stay_what_they_were() -> None:
    table = filled(8, 4)
    head, row, turned = table, table[3], table.T
    before = table.clone()
    parked = ParkedWeights([Slotted(table, (head, row, turned))], CPU)
    assert parked.nbytes == table.nbytes
    for _ in range(3):
        parked.leave_device()
        parked.return_()
        assert torch.equal(head, before)
        assert torch.equal(row, before[3])
        assert torch.equal(turned, before.T)


def test_storages_larger_than_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_weights, "_SEGMENT_BYTES", 100)
    tensors = [filled(60), filled(3), filled(41)]
    before = [tensor.clone() for tensor in tensors]
    parked = ParkedWeights([tuple(tensors)], CPU)
    parked.leave_device()
    parked.return_()
    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))


def test_tensors_elsewhere_are_left_alone() -> None:
    other = torch.empty(5, device="meta")
    here = filled(5)
    parked = ParkedWeights([(other, here, None, "text", 5, torch)], CPU)
    assert parked.nbytes == here.nbytes


def test_leaving_twice_is_leaving_once() -> None:
    tensor = filled(5)
    before = tensor.clone()
    parked = ParkedWeights([tensor], CPU)
    parked.leave_device()
    parked.leave_device()
    parked.return_()
    assert torch.equal(tensor, before)


def test_inference_tensors() -> None:
    with torch.inference_mode():
        tensor = filled(6, 2)
    before = tensor.clone()
    parked = ParkedWeights([tensor], CPU)
    parked.leave_device()
    parked.return_()
    assert torch.equal(tensor, before)
