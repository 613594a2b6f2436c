"""What is wrong with a model's path is told in the same words by every command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from luce.cli.main import main
from luce.loaders.gguf_split import split_paths
from luce.testing.tiny_models import tiny_llama

COMMANDS = (["inspect"], ["devices"], ["plan"], ["bench"], ["serve", "--port", "0", "--model"])


def _link_in_circles(folder: Path) -> Path:
    path = folder / "loop.gguf"
    path.symlink_to(path.name)
    return path


def _link_to_nothing(folder: Path) -> Path:
    path = folder / "dangling.gguf"
    path.symlink_to("nowhere")
    return path


def _folder(folder: Path) -> Path:
    path = folder / "folder.gguf"
    path.mkdir()
    return path


def _pipe(folder: Path) -> Path:
    path = folder / "pipe.gguf"
    os.mkfifo(path)
    return path


def _below_a_file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file" / "m.gguf"


def _split_without_an_end(folder: Path) -> Path:
    first, *_ = split_paths(folder / "m-00001-of-00002.gguf")
    tiny_llama(folder).rename(first)
    return first


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (_link_in_circles, "loop.gguf: cannot be read: Too many levels of symbolic links"),
        (_link_to_nothing, "dangling.gguf: there is no such file or folder"),
        (_folder, "folder.gguf: is a folder without config.json"),
        (_pipe, "pipe.gguf: is not a regular file"),
        (_below_a_file, "file/m.gguf: cannot be read: Not a directory"),
        (_split_without_an_end, "m-00002-of-00002.gguf: file 2 of 2 of this model is missing"),
    ],
)
def test_all_commands_say_the_same(
    make: Callable[[Path], Path],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = make(tmp_path)
    for command in COMMANDS:
        assert main([*command, str(path)]) == 3, command
    said = set(capsys.readouterr().err.splitlines())
    (line,) = {line for line in said if line.startswith("luce: ")}
    assert line.startswith(f"luce: {tmp_path}")
    assert problem in line
