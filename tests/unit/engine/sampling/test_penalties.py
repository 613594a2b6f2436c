"""Penalties by their definition, and windows that forget."""

from __future__ import annotations

import pytest
import torch

from luce.engine.sampling.penalties import PenaltyStrengths, TokenWindows, apply_penalties

CPU = torch.device("cpu")


def strengths(*rows: tuple[float, float, float]) -> PenaltyStrengths:
    columns = [torch.tensor(column).unsqueeze(1) for column in zip(*rows, strict=True)]
    return PenaltyStrengths(*columns)


def test_each_penalty() -> None:
    logits = torch.tensor([[2.0, -2.0, 4.0, 1.0]]).repeat(4, 1)
    counts = torch.tensor([[1.0, 3.0, 0.0, 2.0]]).repeat(4, 1)
    found = apply_penalties(
        logits, counts, strengths((2.0, 0, 0), (1.0, 0.5, 0), (1.0, 0, 0.25), (2.0, 0.5, 0.25))
    )
    assert found.tolist() == [
        [1.0, -4.0, 4.0, 0.5],
        [1.5, -3.5, 4.0, 0.0],
        [1.75, -2.25, 4.0, 0.75],
        [0.25, -5.75, 4.0, -0.75],
    ]


def test_counts_of_the_last_tokens_only() -> None:
    windows = TokenWindows(2, 6, CPU)
    windows.start(0, [5, 1, 1, 2], 3)
    windows.start(1, [4], 2)
    assert windows.counts([0, 1]).tolist() == [[0, 2, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]]
    windows.append([0, 1], torch.tensor([3, 4]))
    assert windows.counts([1, 0]).tolist() == [[0, 0, 0, 0, 2, 0], [0, 1, 1, 1, 0, 0]]
    windows.append([0], torch.tensor([3]))
    windows.append([0], torch.tensor([3]))
    assert windows.counts([0]).tolist() == [[0, 0, 0, 3, 0, 0]]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_ring_equals_a_list(size: int) -> None:
    windows = TokenWindows(3, 10, CPU)
    history = [token * 7 % 10 for token in range(4)]
    windows.start(2, history, size)
    for step in range(25):
        expected = [history[-size:].count(token) for token in range(10)]
        assert windows.counts([2]).tolist() == [expected]
        history.append(step * 3 % 10)
        windows.append([2], torch.tensor(history[-1:]))


def test_a_new_occupant_starts_clean() -> None:
    windows = TokenWindows(2, 5, CPU)
    windows.start(0, [1, 2, 3, 4, 1, 2], 6)
    windows.start(1, [3], 2)
    windows.start(0, [0], 2)
    assert windows.counts([0, 1]).tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 0]]
    windows.append([0], torch.tensor([4]))
    windows.append([0], torch.tensor([4]))
    assert windows.counts([0]).tolist() == [[0, 0, 0, 0, 2]]
