"""Help names every option with its default, and nothing that does not exist."""

from __future__ import annotations

import re

import pytest

from luce.cli.help import luce_help, server_help
from luce.cli.options import LISTENER_OPTIONS, MODEL_OPTIONS
from luce.errors import StartupError


def test_every_option_is_listed_with_its_default() -> None:
    text = " ".join(server_help().split())
    for option in LISTENER_OPTIONS + MODEL_OPTIONS:
        assert f"{', '.join(option.flags)} {option.value_word}" in text
        assert " ".join(option.help.split()) in text
        if option.default is not None:
            assert f"(default: {option.default})" in text


def test_no_flag_is_listed_that_does_not_exist() -> None:
    known = {flag for option in LISTENER_OPTIONS + MODEL_OPTIONS for flag in option.flags}
    listed = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", server_help()))
    assert listed == known | {"--model", "--demo", "--help", "--version"}


def test_exit_codes_are_those_of_the_errors() -> None:
    text = server_help()
    for error in StartupError.__subclasses__():
        assert re.search(rf"\b{error.exit_code} [a-z]", text)


@pytest.mark.parametrize("columns", ["20", "80", "300"])
def test_lines_fit_the_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert max(len(line) for line in server_help().splitlines()) <= 100


def test_subcommands_are_listed() -> None:
    for name in ("serve", "inspect", "bench"):
        assert f"luce {name} " in luce_help()
