"""Lets these tests import the parity tests' driver; skips them all where there is no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import luce.engine  # noqa: F401 - its settings must stand before a test imports torch

TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / "parity"), str(TESTS.parent)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip("no GPU"))
