"""SchedulerLimits: sizes that make no sense are our bugs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luce.scheduler.limits import SchedulerLimits

GOOD = SchedulerLimits(max_rows=1, max_ctx=2, chunk=1, max_prefill_sequences=1, quantum=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_rows", 0), ("max_ctx", 1), ("chunk", 0), ("max_prefill_sequences", 0), ("quantum", 0)],
)
def test_refuses(field: str, value: int) -> None:
    with pytest.raises(AssertionError):
        replace(GOOD, **{field: value})
