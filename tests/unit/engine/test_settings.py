"""What must stand in the environment before PyTorch is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def settings(**given: str) -> list[str | None]:
    """The allocators' settings of a process that has imported the engine."""
    code = f"import luce.engine, os; print(*(os.environ.get(name) for name in {NAMES}))"
    rest = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**rest, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    return [None if word == "None" else word for word in done.stdout.split()]


def test_memory_is_pinned_by_several_threads() -> None:
    found, other = settings()
    assert other is None
    assert found is not None
    flag, threads = found.split(",")
    assert flag == "pinned_use_cuda_host_register:True"
    count = int(threads.removeprefix("pinned_num_register_threads:"))
    assert 1 <= count <= len(os.sched_getaffinity(0))
    assert count.bit_count() == 1


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_allocators_that_somebody_gave_stay(name: str) -> None:
    found = settings(**{name: "pinned_use_cuda_host_register:False"})
    assert found[NAMES.index(name)] == "pinned_use_cuda_host_register:False"
    assert found[1 - NAMES.index(name)] is None
