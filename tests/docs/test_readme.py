"""The README's commands are run as they are written, on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from luce.cli.launch import read_launch
from luce.cli.resolve import resolve
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
ADDRESS = "127.0.0.1:8080"


def block_with(word: str) -> str:
    """The one shell block of the README that holds `word`."""
    (block,) = [block for block in BLOCKS if word in block]
    return block


def make_serve(port: int) -> list[str]:
    """`make serve` in the environment that runs the tests, installed by make or by hand."""
    stamp = Path(sys.prefix) / ".runtime"
    installed = [] if stamp.exists() else ["-o", str(stamp)]
    return ["make", *installed, "serve", f"PORT={port}", f"VENV={sys.prefix}"]


def wait_until_healthy(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended by itself"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        time.sleep(0.1)
    pytest.fail("not ready after two minutes")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """A server started by `make serve`: its port and what it wrote."""
    assert "make serve" in block_with("make serve")
    port = free_port()
    written = tmp_path_factory.mktemp("serve") / "output"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    with (
        written.open("w") as output,
        subprocess.Popen(
            make_serve(port),
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            wait_until_healthy(process, port)
            yield port, written
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def run_curl(command: str, port: int) -> str:
    command = command.replace(ADDRESS, f"127.0.0.1:{port}")
    result = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_curl_of_the_readme(served: tuple[int, Path]) -> None:
    port, _written = served
    assert ADDRESS in block_with("curl")
    answer = json.loads(run_curl(block_with("curl"), port))
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."


def test_the_curl_that_the_server_prints(served: tuple[int, Path]) -> None:
    port, written = served
    text = written.read_text()
    assert f"http://127.0.0.1:{port}" in text
    printed = re.search(r"curl [^\n\\]*(?:\\\n[^\n\\]*)*", text)
    assert printed is not None, text
    assert "Paris" in run_curl(printed[0], port)


def test_the_example_with_several_models_is_accepted() -> None:
    command = shlex.split(block_with("--model-name").replace("\\\n", " "))
    assert command[0] == "luce_server"
    loaded = resolve(read_launch(command[1:]))
    assert len(loaded.config.models) == command.count("--model") > 1
    assert loaded.notes == ()


def test_the_commands_are_targets_of_make() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^(?:[A-Z]+=\S+ )*make ([a-z-]+)", "".join(BLOCKS), re.MULTILINE)
    assert {"serve", "test"} <= set(named) <= set(targets)


def test_the_readme_fits_one_screen_or_two() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90
