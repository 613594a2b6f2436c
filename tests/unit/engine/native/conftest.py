"""Native operations at every level the machine has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import luce.engine  # noqa: F401 - its settings must stand before torch is imported
from luce.engine.native.build import BuildError, find_compiler
from luce.engine.native.library import levels, open_library
from luce.engine.ops.cpu.native import NativeOps

sys.path.append(str(Path(__file__).parent))


def _levels() -> list[str]:
    try:
        find_compiler()
    except BuildError:
        return []
    return levels()


LEVELS = _levels()


@pytest.fixture(params=LEVELS or [pytest.param(None, marks=pytest.mark.skip("no compiler"))])
def ops(request: pytest.FixtureRequest) -> NativeOps:
    """Native operations at each level."""
    library = open_library(request.param)
    library.use_threads(2)
    return NativeOps(library)
