"""Native operations at every level the machine has."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import luce.engine  # noqa: F401 - its settings must stand before torch is imported
from luce.engine.native import tape as tape_module
from luce.engine.native.library import open_library
from luce.engine.ops.cpu.native import NativeOps

sys.path.append(str(Path(__file__).parent))

from levels import levels

NO_LEVEL = pytest.param(None, marks=pytest.mark.skip("no compiler"))


@pytest.fixture(params=levels() or (NO_LEVEL,))
def ops(request: pytest.FixtureRequest) -> NativeOps:
    """Native operations at each level."""
    library = open_library(request.param)
    library.use_threads(2)
    return NativeOps(library)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that operations fill holds nothing that could pass for a result."""
    aligned = tape_module._aligned

    def empty(tape: tape_module.Tape, rows: int, columns: int) -> torch.Tensor:
        assert not tape.is_recording
        return torch.full((rows, columns), torch.nan)

    def room(nbytes: int) -> npt.NDArray[np.uint8]:
        memory = aligned(nbytes)
        memory.fill(0xFF)
        return memory

    monkeypatch.setattr(tape_module.Tape, "empty", empty)
    monkeypatch.setattr(tape_module, "_aligned", room)
