"""Lets the tests of this folder import what they share, and prints the table of clients."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# The test folders are no packages, and pytest's importlib mode adds none of them to the path.
HERE = Path(__file__).parent
sys.path.extend([str(HERE), str(HERE.parent / "http")])

from roster import INSTALLED  # noqa: E402

STEPS = ("tool call", "result", "text", "cancel")


@dataclass
class Row:
    """What was seen of one client."""

    version: str = ""
    steps: set[str] = field(default_factory=set)
    has_failed: bool = False

    def cells(self, name: str) -> list[str]:
        is_ok = not self.has_failed and self.steps.issuperset(STEPS)
        seen = ["yes" if step in self.steps else "-" for step in STEPS]
        return [name, self.version, *seen, "ok" if is_ok else "NO"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-shapes",
        action="store_true",
        help="write the clients' requests to tests/http/client_shapes",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without any client there is nothing to run; with some, one that is missing fails."""
    if INSTALLED.exists():
        return
    skip = pytest.mark.skip(reason="no clients are installed: run `make clients`")
    for item in items:
        if item.get_closest_marker("clients"):
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Which client did what."""
    rows: dict[str, Row] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            _add(rows, report)
    if not rows:
        return
    table = [["client", "version", *STEPS, "ok"], *(row.cells(name) for name, row in rows.items())]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    terminalreporter.section("clients")
    for cells in table:
        line = " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        terminalreporter.write_line(line.rstrip())


def _add(rows: dict[str, Row], report: Any) -> None:
    properties = getattr(report, "user_properties", ())
    noted = {key: value for key, value in properties if key != "step"}
    if "client" in noted:
        row = rows.setdefault(noted["client"], Row())
        row.version = noted["version"]
        row.steps |= {value for key, value in properties if key == "step"}
        row.has_failed |= report.failed
