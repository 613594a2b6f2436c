"""`--luce-mix`: the launcher takes the process over, with every word as it was (A39)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from luce.cli.mix import MARKER, find_engine, find_launcher, hand_over
from luce.errors import UsageError

LAUNCHER = """#!{python}
import json, os, sys
words = [os.fsencode(word).hex() for word in sys.argv[1:]]
print(json.dumps(dict(pid=os.getpid(), words=words, marker=os.environ.get("LUCE_MIX_ACTIVE"),
    me=sys.argv[0])))
sys.exit(7)
"""
ENTRY = "import sys; from luce.cli.main import {entry}; sys.exit({entry}())"


def launcher(folder: Path, name: str = "luce-mix") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(LAUNCHER.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return path


def run(words: list[str | bytes], entry: str = "server_main", **variables: str) -> Any:
    """The finished process, and what the launcher said, if it ran."""
    command = [sys.executable, "-c", ENTRY.format(entry=entry), *words]
    environment = {**os.environ, "PATH": "", **variables}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, errors = process.communicate(timeout=60)
    return process, json.loads(out) if out else None, errors


def words_of(said: Any) -> list[bytes]:
    return [bytes.fromhex(word) for word in said["words"]]


def test_every_word_arrives_as_it_was(tmp_path: Path) -> None:
    launcher(tmp_path / "bin")
    odd: list[str | bytes] = ["a b", "", "--", "-x", "--model", b"\xff\xfe", "ä", "--luce-mix"]
    process, said, _ = run(["--luce-mix", *odd], PATH=str(tmp_path / "bin"))
    expected = [os.fsencode(word) if isinstance(word, str) else word for word in odd]
    engine, *rest = words_of(said)[1:]
    assert words_of(said)[0] == b"--engine"
    assert Path(os.fsdecode(engine)).is_absolute()
    assert Path(os.fsdecode(engine)).name == "luce_server"
    assert rest == expected
    # It is the same process: signals and status are the launcher's.
    assert (process.pid, process.returncode) == (said["pid"], 7)
    assert said["marker"] == "1"


def test_words_before_it_and_the_subcommand(tmp_path: Path) -> None:
    launcher(tmp_path / "bin")
    _, said, _ = run(
        ["serve", "--port", "1", "--luce-mix", "--pair", "x"],
        entry="main",
        PATH=str(tmp_path / "bin"),
    )
    assert words_of(said)[2:] == [b"--port", b"1", b"--pair", b"x"]


def test_the_variable_beats_the_path(tmp_path: Path) -> None:
    launcher(tmp_path / "bin")
    other = launcher(tmp_path, "other")
    _, said, _ = run(["--luce-mix"], PATH=str(tmp_path / "bin"), LUCE_MIX_LAUNCHER=str(other))
    assert said["me"] == str(other)


@pytest.mark.parametrize("kind", ["missing", "plain", "folder"])
def test_a_variable_that_names_no_program_is_an_error(tmp_path: Path, kind: str) -> None:
    launcher(tmp_path / "bin")
    named = tmp_path / "bin" if kind == "folder" else tmp_path / "named"
    if kind == "plain":
        named.write_text("text", encoding="ascii")
    process, said, errors = run(
        ["--luce-mix"], PATH=str(tmp_path / "bin"), LUCE_MIX_LAUNCHER=str(named)
    )
    assert (process.returncode, said) == (2, None)
    assert f"LUCE_MIX_LAUNCHER names no program that can be run: {named}" in errors


def test_no_launcher_names_both_ways() -> None:
    with pytest.raises(UsageError, match="put luce-mix on the PATH, or its path in LUCE_MIX_LAUN"):
        find_launcher({"PATH": "", "LUCE_MIX_LAUNCHER": ""})


def test_it_does_not_go_in_circles(tmp_path: Path) -> None:
    environment = {MARKER: "1", "LUCE_MIX_LAUNCHER": str(launcher(tmp_path))}
    with pytest.raises(UsageError, match="--luce-mix was given by its own launcher"):
        hand_over(["--luce-mix"], environment)


def test_a_launcher_that_cannot_be_run(tmp_path: Path) -> None:
    broken = tmp_path / "luce-mix"
    broken.write_bytes(b"\x7fELF no")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match=r"luce-mix cannot be run: Exec format error"):
        hand_over(["--luce-mix"], {"LUCE_MIX_LAUNCHER": str(broken)})


def test_the_engine_is_found_by_how_we_were_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = launcher(tmp_path, "luce_server")
    monkeypatch.setattr(sys, "argv", [str(program)])
    assert find_engine() == program
    monkeypatch.setattr(sys, "argv", ["luce"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_engine() == program
    program.unlink()
    with pytest.raises(UsageError, match="needs luce_server beside"):
        find_engine()


def test_nothing_that_computes_is_imported_first(tmp_path: Path) -> None:
    code = (
        "import sys, os; from luce.cli import mix\n"
        "os.execve = lambda *_: (print('torch' in sys.modules, 'luce.placement' in sys.modules),"
        " os._exit(0))[0]\n"
        "from luce.cli.main import server_main; server_main(['--luce-mix'])"
    )
    environment = {**os.environ, "LUCE_MIX_LAUNCHER": str(launcher(tmp_path))}
    command = [sys.executable, "-u", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
