"""SchedulerLimits: sizes that make no sense are our bugs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luce.scheduler.limits import CheckpointPolicy, SchedulerLimits

GOOD = SchedulerLimits(max_rows=1, max_ctx=2, chunk=1, max_prefill_sequences=1, quantum=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_rows", 0), ("max_ctx", 1), ("chunk", 0), ("max_prefill_sequences", 0), ("quantum", 0)],
)
def test_refuses(field: str, value: int) -> None:
    changes: dict[str, Any] = {field: value}
    with pytest.raises(AssertionError):
        replace(GOOD, **changes)


@pytest.mark.parametrize("field", ["interval_tokens", "min_gain_tokens", "opening_tokens"])
def test_refuses_a_policy_without_distances(field: str) -> None:
    with pytest.raises(AssertionError):
        replace(CheckpointPolicy(), **{field: 0})
