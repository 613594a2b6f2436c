from __future__ import annotations

from typing import Any

import pytest
import torch

from luce.engine.lent_memory import lent, seen_by


def test_on_a_cpu_it_is_the_tensor_itself() -> None:
    values = torch.ones(3)
    assert lent(values) is values


def test_pinned_memory_has_its_place_and_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch is told of it; there is no device here to make a tensor of it."""
    pinned = torch.arange(6, dtype=torch.int32).view(2, 3)

    def as_tensor(place: Any, device: torch.device) -> torch.Tensor:
        facts = place.__cuda_array_interface__
        assert device == torch.device("cuda", 1)
        assert facts["data"] == (pinned.data_ptr(), False)
        assert (facts["shape"], facts["typestr"]) == ((24,), "|u1")
        return pinned.view(torch.uint8).flatten()

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    assert torch.equal(seen_by(pinned, torch.device("cuda", 1)), pinned)
