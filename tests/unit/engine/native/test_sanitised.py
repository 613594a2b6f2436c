"""All kernels under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from levels import levels

from luce.engine.native import build

DRIVER = Path(__file__).parent / "all_kernels.c"
SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-O0",
)
OPERATIONS_OF_A_LEVEL = 4 * 13 * 7 + 5 * 5 * 2 + 5 + 5 * (2 + 4) + 4 * 7


def test_nothing_is_read_or_written_beyond_its_memory(tmp_path: Path) -> None:
    try:
        compiler = build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    program = tmp_path / "all_kernels"
    build.build(compiler, program, SANITIZERS, main=DRIVER)
    done = subprocess.run(
        [str(program)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        # What a pool leaves running at the end is no leak.
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) == OPERATIONS_OF_A_LEVEL * len(levels())
