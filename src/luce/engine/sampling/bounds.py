"""Bounds within which sampling parameters keep float32 logits finite."""

from __future__ import annotations

GREEDY_BELOW = 1e-30
"""Logits of 3e8 divided by less leave float32, so a temperature below it means greedy."""

LARGEST = 1e30
"""Logits of 3e8 multiplied by more leave float32."""


def usable_temperature(temperature: float) -> float:
    """The temperature that is computed with: 0 (greedy) or one float32 can divide by.

    At `LARGEST` the distribution is uniform already, so more changes nothing.
    """
    return 0.0 if temperature < GREEDY_BELOW else min(temperature, LARGEST)


def usable_factor(factor: float) -> float:
    """A positive factor, near enough to 1 that its products and quotients are finite."""
    return min(max(factor, GREEDY_BELOW), LARGEST)


def usable_term(term: float) -> float:
    """A term whose sums are finite."""
    return min(max(term, -LARGEST), LARGEST)
