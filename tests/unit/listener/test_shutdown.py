"""What people are told when a server ends."""

from __future__ import annotations

import re

import pytest

from luce.listener.shutdown import farewell


@pytest.mark.parametrize(
    ("num_answers", "grace_s", "drain_s", "says"),
    [
        (0, 30, 0, "stopping"),
        (2, 0, 0, "stopping"),
        (1, 30, 0, "stopping: 1 answer is finished first, which may take 30 s; .* ends it at once"),
        (2, 5, 0, "stopping: 2 answers are finished first, which may take 5 s; .* ends them at .*"),
        (2, 5, 10, "stopping: 2 answers are finished first, which may take 15 s; .*"),
        (0, 5, 10, "stopping: the gateway ends, which may take 10 s; .* ends it at once"),
    ],
)
def test_what_is_waited_for(num_answers: int, grace_s: float, drain_s: float, says: str) -> None:
    assert re.fullmatch(says, farewell(num_answers, grace_s, drain_s))
