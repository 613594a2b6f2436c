"""What all tests share: the demo model, and settings that keep runs steady on a busy machine."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Two test processes on two cores: more threads each would only wait for one another. Set
# before anything imports torch; processes started by tests inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton decides when it is imported whether kernels are compiled or interpreted; without a GPU
# they are interpreted, whichever test imports it first.
if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The test folders are no packages, and pytest's importlib mode adds none of them to the path.
sys.path.append(str(Path(__file__).parent))

# How long an example takes to make says how busy the machine is.
steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("local", steady)
settings.register_profile("ci", steady, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_runtest_setup() -> None:
    """Each test finds the same global generators, whatever ran before it."""
    random.seed(0)
    for module, seed in (("numpy.random", "seed"), ("torch", "manual_seed")):
        if module in sys.modules:
            getattr(sys.modules[module], seed)(0)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's GGUF file; a missing package fails the test, it is never skipped."""
    from luce.cli.demo import find_demo_model

    return find_demo_model()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the demo model, so that `-m "not model"` leaves it out."""
    for item in items:
        if isinstance(item, pytest.Function) and "demo_model" in item.fixturenames:
            item.add_marker(pytest.mark.model)
