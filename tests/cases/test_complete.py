"""Every entry of the bug log has a case here, by the name of its test."""

from __future__ import annotations

import re
from pathlib import Path

ENTRIES = {*range(1, 80, 2)}
"""Their numbers: B01, B03 ... B79."""


def test_each_of_the_forty_entries_has_a_test() -> None:
    found: set[int] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        names = re.findall(r"def test_case_b(\d\d)_", path.read_text(encoding="utf-8"))
        found |= {int(number) for number in names}
    assert len(ENTRIES) == 40
    assert found == ENTRIES
