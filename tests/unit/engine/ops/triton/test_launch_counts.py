"""A decode step of a hybrid of quantised experts starts as many kernels as it is built to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[5]
EXPECTED = {
    (1, "linear attention"): 4,
    (1, "full attention"): 6,
    (1, "mixture"): 3,
    (16, "mixture"): 4,
}


@pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="the benches are not there")
def test_launches_of_a_layer() -> None:
    """Counted by the bench in a process of its own, since this one interprets kernels."""
    command = [sys.executable, "-m", "bench.engine.launches", "--rows", "1,16"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": paths, "TRITON_INTERPRET": "0"}
    found = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    counts: dict[tuple[int, str], int] = {}
    rows = 0
    for line in found.stdout.splitlines():
        heading = re.match(r"35B-A3B:Q4_K, (\d+) rows", line)
        part = re.match(r"  (\S.*?) +(\d+) launches", line)
        if heading:
            rows = int(heading[1])
        elif part:
            counts[rows, part[1]] = int(part[2])
    assert {case: counts[case] for case in EXPECTED} == EXPECTED, found.stdout + found.stderr
