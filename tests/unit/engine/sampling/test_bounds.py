"""The numbers that parameters are brought to."""

from __future__ import annotations

import pytest
import torch

from luce.engine.sampling.bounds import (
    GREEDY_BELOW,
    LARGEST,
    usable_factor,
    usable_temperature,
    usable_term,
)


@pytest.mark.parametrize(
    ("given", "used"),
    [(0.0, 0.0), (1e-31, 0.0), (1e-30, 1e-30), (0.7, 0.7), (2.0, 2.0), (1e39, 1e30)],
)
def test_temperature(given: float, used: float) -> None:
    assert usable_temperature(given) == used


@pytest.mark.parametrize(("given", "used"), [(1e-300, 1e-30), (0.5, 0.5), (1e300, 1e30)])
def test_factor(given: float, used: float) -> None:
    assert usable_factor(given) == used


@pytest.mark.parametrize(("given", "used"), [(-1e300, -1e30), (-2.0, -2.0), (1e300, 1e30)])
def test_term(given: float, used: float) -> None:
    assert usable_term(given) == used


def test_logits_within_the_bounds_stay_in_float32() -> None:
    logits = torch.tensor([3e8, -3e8])
    assert (logits / GREEDY_BELOW).isfinite().all()
    assert (logits * LARGEST).isfinite().all()
