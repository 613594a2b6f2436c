"""Help names every option with its default, and nothing that does not exist."""

from __future__ import annotations

import re

import pytest

from luce.cli.help import luce_help, server_help
from luce.cli.launch import LAUNCH_OPTIONS
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS
from luce.errors import StartupError

ALL = LAUNCH_OPTIONS + LISTENER_OPTIONS + MODEL_OPTIONS


def test_every_option_is_listed_with_default_and_variable() -> None:
    text = " ".join(server_help().split())
    for option in ALL:
        has_default = option.default is not None and option.default != ()
        notes = [f"default: {option.show(option.default)}"] if has_default else []
        notes += [option.variable] if option.variable else []
        end = f" ({'; '.join(notes)})" if notes else ""
        assert f"{option.synopsis} {' '.join(option.help.split())}{end}" in text


def test_forms_without_and_with_an_optional_value() -> None:
    text = server_help()
    assert "\n  --prefix-cache, --no-prefix-cache\n" in text
    assert "\n  --load-balancing, --no-load-balancing\n" in text
    assert "\n  --print-config[=text|json]  " in text
    assert "(default: off)" in text


def test_no_flag_is_listed_that_does_not_exist() -> None:
    known = {flag for option in ALL for flag in option.spellings}
    listed = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", server_help()))
    assert listed == known | {
        *("--model", "--demo", "--help", "--version"),
        *("--list-devices", "--print-profile", "--luce-mix"),
    }


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
