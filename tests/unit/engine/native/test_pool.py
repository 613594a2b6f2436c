"""Threads that share the work of a run, whichever of them come late."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from luce.engine.native import build

DRIVER = Path(__file__).parent / "pool_runs.c"
RUNS = 2_000_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        compiler = build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    target = tmp_path_factory.mktemp("pool") / "pool_runs"
    sources = [str(DRIVER), str(build.FOLDER / "pool.c")]
    command = [compiler, "-O2", "-std=gnu11", f"-I{build.FOLDER}", *sources, "-pthread"]
    subprocess.run([*command, "-o", str(target)], check=True, timeout=100)
    return target


@pytest.mark.parametrize("threads", [2, 3])
def test_each_chunk_of_a_run_is_run_once(program: Path, threads: int) -> None:
    """A late thread once took chunks of the next run, one run in some hundred or thousand."""
    done = subprocess.run(
        [str(program), str(threads), str(RUNS)],
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    assert int(done.stdout) == 0
