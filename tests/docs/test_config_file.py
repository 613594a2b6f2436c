"""The example in docs/config-file.md is loaded, and says what its command line says."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

from luce.cli.launch import read_launch
from luce.cli.resolve import resolve
from luce.config.load import Loaded

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "config-file.md").read_text("utf-8")


def example(language: str) -> str:
    """The page's one code block of a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


def load_file(folder: Path) -> Loaded:
    path = folder / "luce.toml"
    path.write_text(example("toml"), encoding="utf-8")
    return resolve(read_launch(["--config", str(path)]))


def test_the_example_is_accepted_without_a_note(tmp_path: Path) -> None:
    loaded = load_file(tmp_path)
    assert [model.name for model in loaded.config.models] == ["small", "big"]
    assert loaded.notes == ()


def test_the_file_and_the_command_line_say_the_same(tmp_path: Path) -> None:
    words = shlex.split(example("sh").replace("\\\n", " "))
    assert words[0] == "luce_server"
    from_line = resolve(read_launch(words[1:])).config
    models = tuple(replace(model, path=tmp_path / model.path) for model in from_line.models)
    assert load_file(tmp_path).config == replace(from_line, models=models)
